"""Promise: without its token no visitor sees or changes anything on a page, nor does another site in your browser.

Each button of the operator's and of the volunteer's page is tried, by HTTP.
"""

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from client.page.app import BODIES, volunteer_app
from fedappeal.federation.invitations import FILE, MOST_KEPT, Invitations
from fedappeal.protocol.invitation import Invitation
from fedappeal.views.live.actions import ForeignRun, SubmittedRun
from fedappeal.views.live.members import CHANGES, Members
from fedappeal.views.live.page import live_page, page_app
from fedappeal.views.live.view import View
from fedappeal.web.access import MOST_BODY
from fedappeal.web.serving import PagePlace, ServedPage, serve_page
from tests.views.live.admission import SuperLinkOfMembers, a_public_key, an_opened_folder

WRONG = 43 * "x"


def buttons(app: Starlette) -> list[str]:
    """Return the paths of an app's buttons."""
    return [route.path for route in app.routes if isinstance(route, Route) and "POST" in (route.methods or ())]


class Counted:
    """An app that counts the requests which come in."""

    def __init__(self, app: Starlette) -> None:
        self.app, self.requests = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        await self.app(scope, receive, send)


def a_page(name: str, folder: Path) -> tuple[Starlette, dict[str, int]]:
    if name == "volunteer":
        return volunteer_app(folder), dict(BODIES)
    return page_app(View(ForeignRun())), {}


PAGES = [(name, path) for name in ("operator", "volunteer") for path in buttons(a_page(name, Path("/nowhere"))[0])]


def test_all_buttons_are_tried() -> None:
    assert {path for name, path in PAGES if name == "operator"} == {
        "/stop", "/resume", "/start", "/choose", *(f"/{change}" for change in CHANGES)
    }  # fmt: skip
    assert Counter(name for name, _ in PAGES)["volunteer"] > 8


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[ServedPage, Counted, Path]]]:
    """Each page, what counts its requests, and the folder that it could change."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("operator", "volunteer")}
    pages = {name: a_page(name, folder) for name, folder in folders.items()}
    counted = {name: Counted(app) for name, (app, _) in pages.items()}
    with (
        serve_page(counted["operator"], PagePlace(0)) as operator,
        serve_page(counted["volunteer"], PagePlace(0), bodies=pages["volunteer"][1]) as volunteer,
    ):
        both = {"operator": operator, "volunteer": volunteer}
        yield {name: (both[name], counted[name], folders[name]) for name in both}


@pytest.mark.parametrize(("name", "path"), PAGES)
def test_a_button_is_pressed_from_its_own_page_alone(
    name: str, path: str, served: dict[str, tuple[ServedPage, Counted, Path]]
) -> None:
    page, counted, folder = served[name]
    url, port = f"http://{page.address}", page.address.rpartition(":")[2]
    token, own = {"Authorization": f"Bearer {page.token}"}, {"Origin": url}
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        session = client.get(page.url).headers["set-cookie"].partition(";")[0]
        before = counted.requests
        for wrong in (
            {**own},
            {**own, "Authorization": f"Bearer {WRONG}"},
            {**own, "Authorization": f"Basic {page.token}"},
            {**own, "Cookie": f"fedappeal-page-{port}={WRONG}"},
            {**own, "Cookie": f"fedappeal-page-{port}={page.token}"},
            {**token},
            {"Cookie": session},
            *(
                {**shown, "Origin": origin}
                for shown in (token, {"Cookie": session})
                for origin in ("http://evil.example", f"https://{page.address}", "null", f"{url}.evil.example", "")
            ),
            {**token, **own, "Host": "evil.example"},
            {**token, **own, "Host": f"evil.example:{port}"},
            {**token, "Origin": f"http://evil.example:{port}", "Host": f"evil.example:{port}"},
        ):
            client.cookies.clear()
            answer = client.post(path, headers=wrong, content=b"{}")
            assert answer.status_code == 403, wrong
        client.cookies.clear()
        assert client.post(f"{path}?token={page.token}", headers=own, content=b"{}").status_code == 403
        for oversized in (b"{" + MOST_BODY * b" " + b"}", b"x" * (BODIES.get(path, MOST_BODY) + 1)):
            if len(oversized) > BODIES.get(path, MOST_BODY):
                assert client.post(path, headers=token | own, content=oversized).status_code == 413
        chunks = (b"x" * 1000 for _ in range(BODIES.get(path, MOST_BODY) // 1000 + 2))
        assert client.post(path, headers=token | own, content=chunks).status_code == 413
        assert counted.requests == before, "none of these came in"
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            assert client.request(method, path, headers=token | own).status_code == 405
    assert not list(folder.iterdir()), "nothing was made or changed"


@dataclass
class Open:
    """A federation's page, as `fedappeal watch` serves it.

    Attributes:
        page: the page.
        folder: the federation's.
        superlink: a list of nodes.
        client: its operator, who has the token.
    """

    page: ServedPage
    folder: Path
    superlink: SuperLinkOfMembers
    client: httpx.Client
    told: list[str] = field(default_factory=list)

    def press(self, path: str, **body: Any) -> tuple[int, str]:
        answer = self.client.post(path, json=body)
        return answer.status_code, str(answer.json()["said"])


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.setattr("fedappeal.views.live.view.ASKED_WITHIN", 0.1)
    monkeypatch.setattr("fedappeal.views.live.view.ASKED_EVERY", 0.1)
    superlink, folder = SuperLinkOfMembers(), an_opened_folder(tmp_path / "fed")
    view = View(SubmittedRun(superlink), None, superlink, members=Members(superlink, folder))
    with live_page(view, PagePlace(0)) as page:
        known = {"Authorization": f"Bearer {page.token}", "Origin": f"http://{page.address}"}
        limits = httpx.Limits(max_connections=20)
        with httpx.Client(
            base_url=f"http://{page.address}", headers=known, trust_env=False, timeout=60, limits=limits
        ) as client:
            yield Open(page, folder, superlink, client)


@contextmanager
def listening(opened: Open) -> Iterator[list[str]]:
    """Take down all that another open page of the operator is told, during the block."""
    told: list[str] = []
    ready, ended = threading.Event(), threading.Event()

    def read() -> None:
        seen = 0
        while not ended.wait(0.05):
            told.append((answer := opened.client.get("/data.json", params={"seen": seen})).text)
            seen = answer.json()["seen"]
            ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert ready.wait(30)
    yield told
    ended.set()
    reader.join(30)


def test_the_secret_is_in_one_answer_and_nowhere_else(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with listening(opened) as told:
        status, line = opened.press("/invite", name="anna", uses=2, expires="1h")
        assert (status, line[:33]) == (200, "fedappeal://fed.example.org:9094/")
        invitation = Invitation.parse(line)
        secret = line[-28:]
        deadline = threading.Event()
        for _ in range(100):
            if any('"anna"' in text for text in told):
                break
            deadline.wait(0.1)
        assert any('"anna"' in text for text in told), "the other page lists it"
        assert secret not in "".join(told)
    for path in ("/", "/static/page.js", "/static/parts.js", "/charts.json"):
        assert secret not in opened.client.get(path).text
    status, again = opened.press("/invite", name="anna", uses=2, expires="1h")
    assert (status, "it is invited already" in again, "fedappeal://" in again) == (409, True, False)
    for path in opened.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert invitation.secret not in content
            assert secret.encode() not in content
            assert invitation.secret.hex().encode() not in content
    assert secret not in caplog.text
    assert opened.client.post("/invite", json={"name": "anna"}).headers["cache-control"] == "no-store"


def test_a_visitor_without_the_token_sees_nothing_of_members_and_changes_none(opened: Open) -> None:
    opened.press("/invite", name="anna")
    opened.superlink.register_node(b"a key", "ben")
    (node,) = opened.superlink.listed
    visitor = httpx.Client(base_url=f"http://{opened.page.address}", trust_env=False, timeout=30)
    with visitor:
        for path in ("/", "/data.json", "/report", "/charts.json", "/invite", "/static/page.js"):
            for headers in ({}, {"Authorization": f"Bearer {WRONG}"}):
                answer = visitor.get(path, headers=headers)
                assert answer.status_code == 403
                assert not re.search("anna|ben|key-", answer.text)
        own = {"Origin": f"http://{opened.page.address}"}
        bodies = {"invite": {"name": "eve"}, "withdraw": {"name": "anna"}, "unregister": {"node": str(node.node_id)}}
        for path, body in {**bodies, "register": {"key": "x"}}.items():
            assert visitor.post(f"/{path}", json=body, headers=own).status_code == 403
    assert [(one.name, one.status) for one in Invitations(opened.folder).all()] == [("anna", "open")]
    assert [one.status for one in opened.superlink.listed] == ["registered"]


@pytest.mark.parametrize(
    "name",
    ["<img src=x onerror=alert(1)>", "a\nb", "a\r\nSet-Cookie: x", "../../etc/passwd", "a/b", "..", ".hidden", "-rf",
     "a b", "a\x00b", "anna\u202egnp", "", 65 * "a", 10**4 * "a", "a'; DROP TABLE invitation; --", "%2e%2e"],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_before_anything_is_kept(name: str, opened: Open) -> None:
    before = sorted(path.name for path in opened.folder.iterdir())
    status, said = opened.press("/invite", name=name)
    assert (status, "name" in said, said.isprintable(), len(said) < 501) == (409, True, True, True)
    assert opened.press("/withdraw", name=name)[0] == 409
    assert not Invitations(opened.folder).all()
    assert sorted({*before, FILE}) == sorted(path.name for path in opened.folder.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [*({"uses": uses} for uses in (0, -1, 1001, 10**30, 1.5, True, None, "x", "1e3", "", [2], "\u0663")),
     *({"expires": text} for text in ("0d", "-1d", "100000d", "7", "7w", "", "7d\n", None, 7, 9999 * "1", "\u0667d")),
     {"name": None}, {"name": ["anna"]}, {"name": 7}],
)  # fmt: skip
def test_uses_and_times_out_of_range_are_refused(wrong: dict[str, Any], opened: Open) -> None:
    status, said = opened.press("/invite", **{"name": "anna", **wrong})
    assert (status, next(iter(wrong)) in said) == (409, True)
    assert not Invitations(opened.folder).all()


@pytest.mark.parametrize("body", [b"[]", b"null", b"7", b"{", b"\xff", b"[" * 60_000, b'{"name": NaN}'])
def test_a_body_that_is_no_object_is_refused(body: bytes, opened: Open) -> None:
    for change in CHANGES:
        assert opened.client.post(f"/{change}", content=body).status_code in (400, 409)
    assert not Invitations(opened.folder).all()
    assert not opened.superlink.listed


def at_once(opened: Open, presses: list[tuple[str, dict[str, Any]]]) -> Counter[int]:
    """Press buttons from twenty threads; return how many answers have which status."""
    with ThreadPoolExecutor(20) as threads:
        return Counter(threads.map(lambda press: opened.client.post(press[0], json=press[1]).status_code, presses))


def test_a_button_that_two_operators_press_at_once_acts_once(opened: Open, tmp_path: Path) -> None:
    key = a_public_key(tmp_path, "ben")
    assert at_once(opened, 20 * [("/invite", {"name": "anna"})]) == {200: 1, 409: 19}
    assert at_once(opened, 20 * [("/withdraw", {"name": "anna"})]) == {200: 1, 409: 19}
    assert at_once(opened, 20 * [("/register", {"key": key})]) == {200: 20}, "already registered is what was asked"
    (node,) = opened.superlink.listed
    assert at_once(opened, 20 * [("/unregister", {"node": str(node.node_id)})]) == {200: 1, 409: 19}
    assert [(one.name, one.status) for one in Invitations(opened.folder).all()] == [("anna", "withdrawn")]
    assert [(one.name, one.status) for one in opened.superlink.listed] == [("ben", "unregistered")]


def test_a_thousand_quick_presses_leave_the_page_and_its_file_whole(opened: Open) -> None:
    presses = [("/invite", {"name": f"c{number}", "uses": 1 + number % 3}) for number in range(1000)]
    with listening(opened) as told:
        assert at_once(opened, presses) == {200: 1000}
        status, said = opened.press("/invite", name="one-more")
        assert (status, f"keeps {MOST_KEPT} invitations" in said) == (409, True)
        assert opened.press("/withdraw", name="c999") == (200, "the invitation of c999 is withdrawn")
        assert opened.client.get("/").status_code == 200
    kept = Invitations(opened.folder).all()
    assert (len(kept), len({one.name for one in kept})) == (1000, 1000)
    longest = max(len(text) for text in told)
    assert longest < 100_000, "an open page is told of a bounded number"
    assert json.loads(told[-1])
