"""A page's server: an address with a token, one line where its port is taken, and an end that comes."""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fedappeal.settings.config import ConfigError
from fedappeal.web import serving
from fedappeal.web.serving import PagePlace, serve_page
from tests.ports import free_port
from tests.web.pages import small_page


def test_a_page_is_served_while_the_with_lasts() -> None:
    with serve_page(small_page(), PagePlace(0)) as page:
        assert page.url == f"http://{page.address}/?token={page.token}"
        assert page.address.startswith("127.0.0.1:")
        assert len(page.token) >= 43  # 256 bits
        answer = httpx.get(page.url, follow_redirects=True, trust_env=False)
        assert answer.text == "welcome "
        assert "server" not in answer.headers
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url, trust_env=False)
    assert not [thread for thread in threading.enumerate() if thread.name == "fedappeal-page"]


def test_every_page_has_a_token_of_its_own() -> None:
    with serve_page(small_page(), PagePlace(0)) as one, serve_page(small_page(), PagePlace(0)) as other:
        assert one.token != other.token
        known = {"Authorization": f"Bearer {one.token}"}
        assert httpx.get(f"http://{one.address}/", headers=known, trust_env=False).status_code == 200
        assert httpx.get(f"http://{other.address}/", headers=known, trust_env=False).status_code == 403


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = rf"^page = {port} is not allowed: .*[Aa]ddress already in use.*127\.0\.0\.1:{port}"
        with pytest.raises(ConfigError, match=wanted), serve_page(small_page(), PagePlace(port)):
            pass
        with pytest.raises(ConfigError, match=wanted):
            PagePlace(port).check()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_one_line(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"^page = {port} is not allowed: 0 .* to 65535$"):
        PagePlace(port).check()


@pytest.mark.parametrize("published", ["here", "here:0", "here:99999", "http://here:80", "a b:80", ":80", "<b>:80"])
def test_a_published_address_that_is_none_is_one_line(published: str) -> None:
    with pytest.raises(ConfigError, match=r"^page-published = .* is not allowed: HOST:PORT"):
        PagePlace(0, published=published).check()


def test_a_published_address_is_the_one_that_is_visited() -> None:
    """As in a container: bound to one port, published under another."""
    with serve_page(small_page(), PagePlace(0, published="127.0.0.1:8090")) as page:
        assert page.url == f"http://127.0.0.1:8090/?token={page.token}"


def test_a_page_in_a_container_knows_its_published_host_alone() -> None:
    port = free_port()
    with serve_page(small_page(), PagePlace(port, published="lab.example:8090")) as page:
        known = {"Authorization": f"Bearer {page.token}"}
        for host, status in (("lab.example:8090", 200), ("localhost:8090", 200), (f"127.0.0.1:{port}", 403)):
            answer = httpx.get(f"http://127.0.0.1:{port}/", headers={**known, "Host": host}, trust_env=False)
            assert answer.status_code == status


def test_it_ends_with_an_answer_under_way() -> None:
    left = threading.Event()

    async def endless(request: Request) -> Response:
        async def texts() -> AsyncIterator[str]:
            try:
                while True:
                    yield "again\n"
                    await asyncio.sleep(0.05)
            finally:
                left.set()

        return StreamingResponse(texts())

    with httpx.Client(trust_env=False, timeout=30) as client:
        with serve_page(small_page(Route("/endless", endless)), PagePlace(0)) as page:
            known = {"Authorization": f"Bearer {page.token}"}
            request = client.build_request("GET", f"http://{page.address}/endless", headers=known)
            stream = client.send(request, stream=True)
            assert next(stream.iter_lines()) == "again"
        assert not [thread for thread in threading.enumerate() if thread.name == "fedappeal-page"]
        assert left.is_set()
        stream.close()


def test_uvicorns_loggers_are_as_they_were() -> None:
    logger = logging.getLogger("uvicorn.error")
    before = logger.level, logging.getLogger("uvicorn.access").propagate
    with serve_page(small_page(), PagePlace(0)):
        assert logger.level > logging.CRITICAL
    assert (logger.level, logging.getLogger("uvicorn.access").propagate) == before


@pytest.mark.parametrize("dead", [True, False], ids=["it ended", "it takes too long"])
def test_a_server_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch, dead: bool) -> None:
    waits, end = [0.0], threading.Event()
    clock = SimpleNamespace(
        monotonic=lambda: waits[0], sleep=lambda seconds: waits.__setitem__(0, waits[0] + seconds)
    )
    monkeypatch.setattr(serving, "time", clock)
    thread = threading.Thread(target=end.wait, args=(0.0 if dead else 60.0,))
    thread.start()
    if dead:
        thread.join()
    with pytest.raises(RuntimeError, match="did not start"):
        serving._wait_until_started(SimpleNamespace(started=False), thread)  # type: ignore[arg-type]
    assert waits[0] == pytest.approx(0.0 if dead else 10.0, abs=0.1)
    end.set()
    thread.join()


@pytest.mark.parametrize(
    ("page", "published", "host"),
    [
        ("0", "", "127.0.0.1"),
        ("127.0.0.2:0", "", "127.0.0.2"),
        ("[::1]:0", "", "::1"),
        ("0.0.0.0:0", "volunteers.example:80", "0.0.0.0"),
    ],
)
def test_where_a_page_is_served(page: str, published: str, host: str) -> None:
    assert PagePlace.parse(page, published) == PagePlace(0, host, published)


@pytest.mark.parametrize("page", ["", ":0", "here", "localhost:0", "127.0.0.1:", "127.0.0.1:x", "::1", "0.0.0.0:0"])
def test_where_no_page_is_served(page: str) -> None:
    with pytest.raises(ConfigError, match=r"^page(-published)? = |^page-published is missing"):
        PagePlace.parse(page)


def test_a_port_of_more_digits_than_a_port_has_is_no_place() -> None:
    with pytest.raises(ConfigError, match=r"^page = '100000' is not allowed: PORT or HOST:PORT"):
        PagePlace.parse("100000")


def test_the_servers_loggers_are_as_before() -> None:
    logger = logging.getLogger("uvicorn.error")
    before = (logger.level, logger.handlers, logger.propagate)
    mine = (logging.DEBUG + 3, [logging.NullHandler()], False)
    logger.level, logger.handlers, logger.propagate = mine
    try:
        with serve_page(small_page(), PagePlace(0)):
            pass
        assert (logger.level, logger.handlers, logger.propagate) == mine
    finally:
        logger.level, logger.handlers, logger.propagate = before
