"""Flower's calls by HTTP, by the proxies that `fedappeal.flower.node.proxy` finds: httpx has a rule of its own."""

from types import SimpleNamespace
from typing import Any

import httpx
from flwr.supercore.protobuf import client as flower

from fedappeal.flower.node.proxy import Proxy, proxy_of
from fedappeal.flower.processes import replace_name


class _ByRule(httpx.BaseTransport):
    """Connections to any server, each by the proxy for it."""

    def __init__(self, verify: Any) -> None:
        self._verify = verify
        self._made: dict[Proxy | None, httpx.HTTPTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        try:
            proxy = proxy_of(request.url.host, tls=request.url.scheme == "https")
        except OSError as error:
            raise httpx.ProxyError(str(error)) from None
        if proxy not in self._made:
            url = proxy.url if proxy else None
            self._made[proxy] = httpx.HTTPTransport(verify=self._verify, trust_env=False, proxy=url)
        return self._made[proxy].handle_request(request)

    def close(self) -> None:
        """Close all connections."""
        for transport in self._made.values():
            transport.close()


def _client(verify: Any, **named: Any) -> httpx.Client:
    return httpx.Client(transport=_ByRule(verify), trust_env=False, **named)


def heed_proxies() -> None:
    """Let Flower's clients of this process follow the rule."""
    replace_name(flower, "httpx", SimpleNamespace(**{**vars(httpx), "Client": _client}))
