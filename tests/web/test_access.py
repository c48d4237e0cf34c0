"""Who comes in at a page: a token, the published Host and Origin, bodies of bounded size."""

import logging
import re
import time
from collections.abc import Iterator

import httpx
import pytest

from fedappeal.web.access import MOST_BODY, MOST_SESSIONS, hosts_of
from fedappeal.web.serving import PagePlace, ServedPage, serve_page
from tests.web.pages import small_page


@pytest.fixture(scope="module")
def page() -> Iterator[ServedPage]:
    with serve_page(small_page(), PagePlace(0)) as page:
        yield page


@pytest.fixture
def visitor(page: ServedPage) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{page.address}", trust_env=False) as client:
        yield client


@pytest.fixture
def owner(page: ServedPage, visitor: httpx.Client) -> httpx.Client:
    visitor.headers["Authorization"] = f"Bearer {page.token}"
    return visitor


def test_the_printed_address_sets_a_cookie_and_leads_to_the_page_without_its_token(
    page: ServedPage, visitor: httpx.Client
) -> None:
    first = visitor.get(page.url + "&tab=clients")
    assert (first.status_code, first.headers["location"]) == (303, "/?tab=clients")
    cookie = first.headers["set-cookie"]
    port = page.address.rpartition(":")[2]
    assert re.match(rf"fedappeal-page-{port}=[A-Za-z0-9_-]{{43}};", cookie)
    assert page.token not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    then = visitor.get("/?tab=clients")
    assert (then.status_code, then.text) == (200, "welcome tab=clients")


def new_session(page: ServedPage) -> str:
    """Visit the printed address; return what its cookie holds."""
    cookie = httpx.get(page.url, trust_env=False).headers["set-cookie"]
    return str(cookie).partition(";")[0].partition("=")[2]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic TOKEN"},
        {"Cookie": "fedappeal-page-PORT=wrong"},
        {"Cookie": "fedappeal-page-PORT=TOKEN"},
        {"Cookie": "fedappeal-page-PORT="},
    ],
)
@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/?token=", "/no-such-page"])
def test_without_its_token_a_page_says_one_line(
    page: ServedPage, visitor: httpx.Client, headers: dict[str, str], path: str
) -> None:
    port = page.address.rpartition(":")[2]
    for name, value in headers.items():
        visitor.headers[name] = value.replace("PORT", port).replace("TOKEN", page.token)
    answer = visitor.get(path)
    assert answer.status_code == 403
    assert answer.text == "this page needs its token: visit the address that was printed\n"


def test_the_token_opens_as_bearer_and_a_session_as_cookie_of_its_own_name(
    page: ServedPage, visitor: httpx.Client
) -> None:
    port = page.address.rpartition(":")[2]
    assert visitor.get("/", headers={"Authorization": f"Bearer {page.token}"}).status_code == 200
    session = new_session(page)
    assert httpx.get(f"http://{page.address}/", headers={"Cookie": session}, trust_env=False).status_code == 403
    for shown, status in ((f"other=1; fedappeal-page-{port}={session}", 200), (f"fedappeal-page-1={session}", 403)):
        assert visitor.get("/", headers={"Cookie": shown}).status_code == status
    assert visitor.get("/", headers={"Authorization": f"Bearer {session}"}).status_code == 403
    assert visitor.get(f"/?token={session}").status_code == 403


def test_the_latest_sessions_count() -> None:
    with serve_page(small_page(), PagePlace(0)) as page:
        port = page.address.rpartition(":")[2]
        sessions = [new_session(page) for _ in range(MOST_SESSIONS + 1)]
        assert len(set(sessions)) == MOST_SESSIONS + 1
        for session, status in ((sessions[0], 403), (sessions[1], 200), (sessions[-1], 200)):
            known = {"Cookie": f"fedappeal-page-{port}={session}"}
            assert httpx.get(f"http://{page.address}/", headers=known, trust_env=False).status_code == status


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "", "localhost.:PORT"]
)
def test_another_host_gets_nowhere_even_with_the_token(page: ServedPage, owner: httpx.Client, host: str) -> None:
    named = host.replace("PORT", page.address.rpartition(":")[2])
    for path in ("/", f"/?token={page.token}"):
        answer = owner.get(path, headers={"Host": named})
        assert answer.status_code in (400, 403)
        assert "set-cookie" not in answer.headers
        assert "welcome" not in answer.text


def test_loopbacks_names_are_hosts(page: ServedPage, owner: httpx.Client) -> None:
    port = page.address.rpartition(":")[2]
    for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert owner.get("/", headers={"Host": f"{name}:{port}"}).status_code == 200


def test_what_is_no_reading_needs_an_origin_of_its_own(page: ServedPage, owner: httpx.Client) -> None:
    port = page.address.rpartition(":")[2]
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", "http://127.0.0.1", ""):
        assert owner.post("/echo", headers={"Origin": origin}, content=b"abc").status_code == 403
        assert owner.get("/", headers={"Origin": origin}).status_code == 403
    assert owner.post("/echo", content=b"abc").status_code == 403
    mine = owner.post("/echo", headers={"Origin": f"http://localhost:{port}"}, content=b"abc")
    assert (mine.status_code, mine.json()) == (200, {"bytes": 3})


def test_the_token_in_an_address_is_no_key_to_what_changes_things(page: ServedPage, visitor: httpx.Client) -> None:
    mine = {"Origin": f"http://{page.address}"}
    assert visitor.post(f"/echo?token={page.token}", headers=mine, content=b"abc").status_code == 403


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
def test_the_first_visit_leads_to_no_other_machine(page: ServedPage, visitor: httpx.Client, path: str) -> None:
    target = httpx.URL(f"http://{page.address}").copy_with(raw_path=f"{path}?token={page.token}".encode())
    answer = visitor.send(httpx.Request("GET", target))
    assert answer.status_code == 303
    location = answer.headers["location"]
    assert location.startswith("/")
    assert not location.startswith("//")
    assert "\\" not in location


def test_bodies_are_bounded(page: ServedPage, owner: httpx.Client) -> None:
    owner.headers["Origin"] = f"http://{page.address}"
    assert owner.post("/echo", content=b"x" * MOST_BODY).json() == {"bytes": MOST_BODY}
    assert owner.post("/echo", content=b"x" * (MOST_BODY + 1)).status_code == 413
    chunks = (b"x" * 8192 for _ in range(100))  # says no length before
    assert owner.post("/echo", content=chunks).status_code == 413


def test_every_answer_brings_the_headers_that_keep_it_here(page: ServedPage, owner: httpx.Client) -> None:
    answers = [owner.get("/"), owner.get("/nothing"), owner.get("/fails"), owner.get("/", headers={"Host": "x"})]
    assert [answer.status_code for answer in answers] == [200, 404, 500, 403]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"


def test_a_failure_is_told_to_the_log_and_not_to_the_visitor(
    owner: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("fedappeal.web.access")  # itself: a server of this process may keep it from the root
    with caplog.at_level(logging.WARNING, logger.name), monkeypatch.context() as patch:
        patch.setattr(logger, "handlers", [caplog.handler])
        patch.setattr(logger, "propagate", False)
        answer = owner.get("/fails")
        until = time.monotonic() + 30  # the answer comes before the line
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.01)
    assert "secret" not in answer.text
    assert [record.getMessage() for record in caplog.records] == [
        "page: GET '/fails' failed: ValueError: a secret detail"
    ]


def test_hosts_are_the_published_address_and_loopbacks_names_of_its_port() -> None:
    assert hosts_of("Lab.example:8090") == {
        "lab.example:8090", "127.0.0.1:8090", "localhost:8090", "[::1]:8090"
    }  # fmt: skip
    assert {"127.0.0.1", "127.0.0.1:80", "[::1]"} <= hosts_of("127.0.0.1:80")
