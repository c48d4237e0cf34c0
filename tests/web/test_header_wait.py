"""A page's connections end where no whole request header comes in time."""

import contextlib
import socket
import time

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedappeal.web.serving import PageConnection, PagePlace, ServedPage, serve_page
from tests.web.pages import small_page

WAIT = 0.5
MARGIN = 3 * WAIT


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageConnection, "begins_within", WAIT)
    monkeypatch.setattr(PageConnection, "idle", WAIT)


def connected(page: ServedPage) -> socket.socket:
    host, _, port = page.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def seconds_until_it_ends(connection: socket.socket) -> float:
    """Send a byte of a header again and again; return when the other end hung up."""
    started = time.monotonic()
    connection.settimeout(0.05)
    connection.sendall(b"GET / HTTP/1.1\r\nX: ")
    while time.monotonic() - started < 30:
        try:
            connection.sendall(b"x")
            if not connection.recv(100):
                return time.monotonic() - started
        except TimeoutError:
            continue
        except OSError:
            return time.monotonic() - started
    return time.monotonic() - started


def test_idle_connections_hold_a_page_no_longer_than_the_wait() -> None:
    with serve_page(small_page(), PagePlace(0)) as page, contextlib.ExitStack() as held:
        known = {"Authorization": f"Bearer {page.token}"}
        for number in range(64):
            connection = held.enter_context(connected(page))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: " if number % 2 else b"")
        started = time.monotonic()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{page.address}/", headers=known, trust_env=False)
        status = 0
        while status != 200:
            assert time.monotonic() - started < MARGIN
            with contextlib.suppress(httpx.TransportError):
                status = httpx.get(f"http://{page.address}/", headers=known, trust_env=False).status_code
            time.sleep(0.02)


def test_single_bytes_do_not_put_the_end_off() -> None:
    with serve_page(small_page(), PagePlace(0)) as page, connected(page) as connection:
        assert seconds_until_it_ends(connection) < MARGIN


def test_nor_do_they_after_an_answer() -> None:
    with serve_page(small_page(), PagePlace(0)) as page, connected(page) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {page.address}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 403")
        assert seconds_until_it_ends(connection) < MARGIN


def test_an_answer_that_takes_longer_arrives() -> None:
    def slow(request: Request) -> Response:
        time.sleep(2 * WAIT)
        return PlainTextResponse("at last")

    with serve_page(small_page(Route("/slow", slow)), PagePlace(0)) as page:
        known = {"Authorization": f"Bearer {page.token}"}
        with httpx.Client(headers=known, trust_env=False, timeout=30) as client:
            for _ in range(2):
                assert client.get(f"http://{page.address}/slow").text == "at last"
