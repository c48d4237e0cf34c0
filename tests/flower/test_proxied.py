"""The contract of Flower's clients by HTTP: the name that is replaced makes them, and they follow our rule."""

import httpx
import pytest
from flwr.supercore.protobuf import client as flower

from fedappeal.flower.proxied import heed_proxies

DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "httpx", flower.httpx)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_flower_makes_its_clients_by_this_name() -> None:
    heed_proxies()
    assert flower.httpx.Client is not httpx.Client
    assert flower.httpx.Response is httpx.Response, "all else is httpx's own"


def test_a_call_to_another_machine_names_the_proxy_by_which_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    heed_proxies()
    monkeypatch.setenv("http_proxy", DEAD)
    with flower.httpx.Client(verify=True) as client:
        with pytest.raises(httpx.ConnectError, match="refused"):  # by the proxy, which is dead: no name is looked up
            client.get("http://fed.example:9/")
        with pytest.raises(httpx.ConnectError):  # loopback goes by none: nothing listens there
            client.get("http://127.0.0.1:9/")
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    with flower.httpx.Client(verify=True) as client, pytest.raises(httpx.ProxyError, match=r"http://HOST:PORT"):
        client.get("http://fed.example:9/")
