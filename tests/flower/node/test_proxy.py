"""Proxies: which server is reached by one, and that all transports agree."""

import socket
import threading
from collections.abc import Iterator

import pytest

from fedappeal.flower.control import Control, ControlError
from fedappeal.flower.node.proxy import proxy_of
from tests.flower.conftest import Server

DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_has_none(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", DEAD)
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    assert proxy_of(host, tls=False) is None
    assert proxy_of(host, tls=True) is None


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize(
    ("exceptions", "host", "excepted"),
    [
        ("a.example, b.example", "b.example", True),
        ("example", "b.Example", True),
        (".example", "b.example", True),
        ("*.example", "b.example", True),
        ("example", "bexample", False),
        ("*", "b.example", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("fd00::/8", "[fd00::1]", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("", "b.example", False),
    ],
)
def test_no_proxy_names_exceptions(
    name: str, exceptions: str, host: str, excepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", DEAD)
    monkeypatch.setenv(name, exceptions)
    assert (proxy_of(host, tls=False) is None) is excepted


def test_each_kind_has_its_variable_and_a_message_names_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:s%20cret@proxy.example:3128")
    monkeypatch.setenv("all_proxy", "other.example:3129")
    by_tls, plain = proxy_of("b.example", tls=True), proxy_of("b.example", tls=False)
    assert str(by_tls) == "the proxy proxy.example:3128 (https_proxy)"
    assert by_tls is not None
    assert by_tls.headers == {"Proxy-Authorization": "Basic bWU6cyBjcmV0"}
    assert str(plain) == "the proxy other.example:3129 (all_proxy)"
    monkeypatch.setenv("all_proxy", "socks5://me:secret@127.0.0.1:9")
    with pytest.raises(OSError, match=r"^all_proxy = 'socks5://...' is not allowed: http://HOST:PORT$"):
        proxy_of("b.example", tls=False)


class Tunnels:
    """A proxy that takes every name for the one server behind it."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server, self.asked = (host, int(port)), list[str]()
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            request = b""
            while b"\r\n\r\n" not in request:
                request += near.recv(4096)
            self.asked.append(request.split(b"\r\n")[0].decode())
            far = socket.create_connection(self._server)
            near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while content := source.recv(1 << 16):
                sink.sendall(content)
        except OSError:
            pass
        sink.close()


@pytest.fixture
def tunnels(any_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tunnels]:
    proxy = Tunnels(any_server.address)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.listener.getsockname()[1]}")
    yield proxy
    proxy.listener.close()


def test_a_server_elsewhere_is_reached_by_the_proxy(any_server: Server, tunnels: Tunnels) -> None:
    any_server.address = "superlink.example:9092"
    fleet, node = any_server.node()
    assert fleet.heartbeat(node, 10.0)
    assert {line.split()[1] for line in tunnels.asked} == {"superlink.example:9092"}


def test_on_loopback_no_transport_asks_a_dead_proxy(any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, DEAD)
    fleet, node = any_server.node()
    assert fleet.heartbeat(node, 10.0)


def test_the_control_api_follows_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(ControlError, match=r"^the SuperLink at 127.0.0.1:9 is not reachable: "):
        Control("127.0.0.1:9").runs()
    with pytest.raises(ControlError, match=r"all_proxy = 'socks5://...' is not"):
        Control("b.example:9").runs()
    monkeypatch.setenv("all_proxy", DEAD)
    with pytest.raises(ControlError, match=r"not reachable by the proxy 127.0.0.1:9 \(all_proxy\): "):
        Control("b.example:9").runs()
