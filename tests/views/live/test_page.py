"""The live page over HTTP: its files, what it is told, and who may stop a run."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import HISTORY
from fedappeal.views.live.actions import ForeignRun
from fedappeal.views.live.page import live_page
from fedappeal.views.live.view import View
from fedappeal.web.serving import PagePlace, ServedPage
from tests.views.comparison.recorded import a_run


class Stopping(ForeignRun):
    """A run that can be stopped."""

    def __init__(self) -> None:
        self.stopped = 0

    def stop(self, run_id: int) -> str:
        self.stopped += 1
        return "run 7 was stopped"


@pytest.fixture
def actions() -> Stopping:
    return Stopping()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run", [{"accuracy": 0.5}], rounds=5)


@pytest.fixture
def page(path: Path, actions: Stopping) -> Iterator[ServedPage]:
    with live_page(View(actions, path), PagePlace(0)) as page:
        yield page


@pytest.fixture
def operator(page: ServedPage) -> Iterator[httpx.Client]:
    known = {"Authorization": f"Bearer {page.token}"}
    with httpx.Client(base_url=f"http://{page.address}", headers=known, trust_env=False, timeout=30) as client:
        yield client


def test_all_that_the_page_loads_is_its_own(operator: httpx.Client) -> None:
    index = operator.get("/")
    assert index.status_code == 200
    assert "style=" not in index.text
    assert not re.search(r"\son[a-z]+=", index.text)
    assert "<script>" not in index.text
    for loaded, kind in (
        ("/static/page.js", "javascript"),
        ("/static/parts.js", "javascript"),
        ("/static/page.css", "css"),
        ("/static/icon.svg", "svg"),
        ("/drawing.js", "javascript"),
        ("/plotly.js", "javascript"),
    ):
        answer = operator.get(loaded)
        assert answer.status_code == 200
        assert kind in answer.headers["content-type"]
        assert "script-src" not in answer.headers["content-security-policy"]  # default-src 'self' counts
    assert operator.get("/static/../page.py").status_code == 404
    assert operator.get("/static/%2e%2e/page.py").status_code == 404


def test_a_page_gets_everything_and_then_each_round(operator: httpx.Client, path: Path) -> None:
    everything = operator.get("/data.json").json()
    assert everything["run"]["last"] == 1
    RunFolder.open(path).append(HISTORY, {"round": 2, "accuracy": 0.75, "seconds": 1.0})
    deadline = time.monotonic() + 30
    while not (news := operator.get("/data.json", params={"seen": everything["seen"], "after": 1}).json())["rounds"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert ([line["round"] for line in news["rounds"]], news["anew"], news["run"]["last"]) == ([2], False, 2)
    assert "clients" not in news
    for garbage in ("x", "-1", "9" * 50, "\u0663"):
        assert operator.get("/data.json", params={"seen": garbage, "after": garbage}).json()["anew"]


def test_the_operator_alone_stops_a_run(operator: httpx.Client, page: ServedPage, actions: Stopping) -> None:
    mine = {"Origin": f"http://{page.address}"}
    for headers in ({}, {"Origin": "http://evil.example"}):
        assert operator.post("/stop", headers=headers).status_code == 403
    assert httpx.post(f"http://{page.address}/stop", headers=mine, trust_env=False).status_code == 403
    assert operator.get("/stop").status_code == 405
    assert actions.stopped == 0
    answer = operator.post("/stop", headers=mine, content=b"{}")
    assert (answer.status_code, answer.json(), actions.stopped) == (200, {"said": "run 7 was stopped"}, 1)


def test_a_report_is_made_for_the_operator_and_reaches_nothing_of_the_page(
    operator: httpx.Client, page: ServedPage
) -> None:
    assert httpx.get(f"http://{page.address}/report", trust_env=False).status_code == 403
    answer = operator.get("/report")
    assert (answer.status_code, "What came out" in answer.text) == (200, True)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    missing = operator.get("/report", params={"run": "7"})
    assert (missing.status_code, missing.text) == (409, "the SuperLink knows no such run\n")


def test_open_pages_are_told_how_the_run_ended_before_they_are_left(path: Path, actions: Stopping) -> None:
    folder, states = RunFolder.open(path), []
    with folder.alone():
        folder.event("round", round=2)
        with live_page(View(actions, path), PagePlace(0)) as page:
            known = {"Authorization": f"Bearer {page.token}"}
            client = httpx.Client(base_url=f"http://{page.address}", headers=known, trust_env=False, timeout=30)
            begun = threading.Event()

            def read() -> None:
                with suppress(httpx.HTTPError):
                    while True:
                        states.append(client.get("/data.json").json()["run"]["state"])
                        begun.set()
                        time.sleep(0.1)

            reader = threading.Thread(target=read)
            reader.start()
            assert begun.wait(30)
            folder.event("interrupted")
    reader.join(30)
    client.close()
    assert states[-1] == "interrupted"


def test_what_is_not_done_is_said(operator: httpx.Client, page: ServedPage) -> None:
    mine = {"Origin": f"http://{page.address}"}
    answer = operator.post("/resume", headers=mine)
    assert (answer.status_code, answer.json()) == (
        409,
        {"said": "there is no run here that can be continued from this page"},
    )
    for rounds in ("0", "-3", "x", "9" * 10):
        answer = operator.post("/resume", headers=mine, json={"rounds": rounds})
        assert (answer.status_code, "a whole number from 1" in answer.text) == (409, True)
    for place, body, said in (
        ("/start", {"file": "../x.toml"}, "no run is started from this page"),
        ("/choose", {"run": "7"}, "the SuperLink knows no such run"),
    ):
        assert operator.post(place, json=body).status_code == 403  # without the page's own Origin
        answer = operator.post(place, headers=mine, json=body)
        assert (answer.status_code, said in answer.json()["said"]) == (409, True)
    answer = operator.post("/stop", headers=mine, json={"run": "123\n"})
    assert (answer.status_code, answer.json()) == (409, {"said": "the SuperLink knows no such run"})
    for body, status in (
        (b"[", 400),
        (b"[1]", 400),
        (b"\xff", 400),
        (30_000 * b"[", 400),
        (b'{"run": {"a": 1}}', 409),
    ):
        answer = operator.post("/stop", headers=mine, content=body)
        assert (answer.status_code, set(answer.json())) == (status, {"said"})
