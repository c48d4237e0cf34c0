"""The proxy by which a server is reached, as environment variables name it: one rule for all connections."""

import base64
import http.client
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Proxy:
    """A proxy that opens tunnels (CONNECT).

    Attributes:
        variable: the environment variable that names it.
        url: ``http://HOST:PORT``, with a name and a password where it wants them.
    """

    variable: str
    url: str

    def __str__(self) -> str:
        """Return how a message names it, without a password."""
        host, port = self.place
        return f"the proxy {host}:{port} ({self.variable})"

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    @property
    def headers(self) -> Mapping[str, str]:
        """What it is told besides."""
        parts = urlsplit(self.url)
        if not parts.username:
            return {}
        names = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Proxy-Authorization": f"Basic {base64.b64encode(names.encode()).decode()}"}


def proxy_of(host: str, *, tls: bool) -> Proxy | None:
    """Return the proxy for a host, or None for loopback and names in ``no_proxy``.

    Args:
        host: name or address of the server.
        tls: whether it is spoken to by TLS: ``https_proxy`` names the proxy, else ``http_proxy``; or ``all_proxy``.

    Raises:
        OSError: if that is no HTTP proxy.
    """
    named = getproxies_environment()
    kind = next((kind for kind in ("https" if tls else "http", "all") if named.get(kind)), "")
    if not kind or _is_excepted(host, named.get("no", "")):
        return None
    url = named[kind] if "://" in named[kind] else f"http://{named[kind]}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise OSError(f"{kind}_proxy = '{url.partition('://')[0]}://...' is not allowed: http://HOST:PORT")
    return Proxy(f"{kind}_proxy", url)


def _is_excepted(host: str, exceptions: str) -> bool:
    """Whether a host is loopback, or among names, suffixes, addresses and networks; ``*`` is all."""
    host = host.strip("[]").lower()
    return is_loopback(host) or any(_names(entry.strip().lower(), host) for entry in exceptions.split(","))


def _names(entry: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        name = entry.removeprefix("*").lstrip(".")
        return entry == "*" or (bool(name) and f".{host}".endswith(f".{name}"))


def tunnelled(connection: http.client.HTTPConnection, proxy: Proxy | None) -> http.client.HTTPConnection:
    """Let a connection go by a proxy; return it."""
    if proxy is not None:
        connection.set_tunnel(connection.host, connection.port, proxy.headers)
        connection.host, connection.port = proxy.place
    return connection


def open_connection(peer: tuple[str, int], timeout: float | None, *, tls: bool) -> socket.socket:
    """Return a connection to a host and port, through the proxy where there is one.

    With ``tls`` it is going to carry TLS.
    """
    if (proxy := proxy_of(peer[0], tls=tls)) is None:
        return socket.create_connection(peer, timeout)
    connection = tunnelled(http.client.HTTPConnection(*peer, timeout=timeout), proxy)
    connection.connect()
    opened: socket.socket = connection.sock
    return opened
