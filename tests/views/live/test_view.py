"""What open pages learn: sections that changed, new rounds, and everything where a run was read anew."""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedappeal.federation.remote import RemoteSuperLink, ServedCertificate
from fedappeal.flower.control import ControlError, ListedRun, Node
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import HISTORY
from fedappeal.system.validity import Validity
from fedappeal.views.live.actions import ForeignRun, NotDone, OwnRun, SubmittedRun
from fedappeal.views.live.live_run import LiveRun
from fedappeal.views.live.view import ASKED_EVERY, LOOKED_WITHIN, STAYS, View
from tests.views.comparison.recorded import a_run

SUPERLINK = RemoteSuperLink("127.0.0.1:8000")


class Page:
    """An open page: what it shows of a view."""

    def __init__(self, view: View) -> None:
        self.view, self.seen = view, 0
        self.shown: dict[str, Any] = {"rounds": []}

    def look(self) -> list[str]:
        """Ask for what is new; return the names of that, or ``all``."""
        self.view.refresh()
        news = self.view.news(self.seen, max((line["round"] for line in self.shown["rounds"]), default=0))
        self.seen, anew, fresh = news.pop("seen"), news.pop("anew"), news.pop("rounds")
        self.shown |= {**news, "rounds": fresh if anew else [*self.shown["rounds"], *fresh]}
        return ["all"] if anew else [*(["rounds"] if fresh else []), *news]


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SuperLinkOfTests:
    """What a SuperLink would say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[ListedRun] = []
        self.nodes: list[Node] = []
        self.asked = 0
        self.away = False
        monkeypatch.setattr(RemoteSuperLink, "nodes", lambda superlink: self._list_nodes())
        monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: self._list_runs())

    def _list_nodes(self) -> list[Node]:
        self.asked += 1
        self._answer()
        return self.nodes

    def _list_runs(self) -> list[ListedRun]:
        self._answer()
        return self.runs

    def _answer(self) -> None:
        if self.away:
            raise ControlError("the SuperLink does not answer", unreachable=True)


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> SuperLinkOfTests:
    return SuperLinkOfTests(monkeypatch)


def a_listed_run(number: int, status: str, path: Path | str) -> ListedRun:
    return ListedRun(number, status, "maxfl", "digits", "2026-11-21T18:41:07+00:00", "", str(path))


def test_only_what_changed_is_told(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}], rounds=3)
    view = View(ForeignRun(), path)
    page = Page(view)
    assert page.look() == ["all"]
    assert [line["round"] for line in page.shown["rounds"]] == [1]
    assert page.look() == []
    RunFolder.open(path).append(HISTORY, {"round": 2, "accuracy": 0.75, "seconds": 1.0})
    assert page.look() == ["rounds", "run"]
    assert page.shown["rounds"][1:] == [{"round": 2, "accuracy": 0.75, "seconds": 1.0}]
    RunFolder.open(path).event("refused", node="7", reason="another protocol")
    assert page.look() == ["refused"]
    other = Page(view)
    assert (other.look(), page.look()) == (["all"], []), "each page has what is new to it"
    assert other.shown == page.shown


def test_a_run_that_continues_is_told_from_its_start(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}] * 2, rounds=3)
    page = Page(View(ForeignRun(), path))
    page.look()
    folder = RunFolder.open(path)
    folder.forget_after(1)
    folder.event("resumed", round=1)
    assert page.look() == ["all"]
    assert [line["round"] for line in page.shown["rounds"]] == [1]


def test_pages_are_answered_by_one_look(tmp_path: Path) -> None:
    clock = Clock()
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}], rounds=3)
    view = View(ForeignRun(), path, clock=clock)
    first = view.news()
    assert (first["anew"], [line["round"] for line in first["rounds"]]) == (True, [1])
    RunFolder.open(path).append(HISTORY, {"round": 2, "accuracy": 0.75, "seconds": 1.0})
    assert view.news(first["seen"], 1)["rounds"] == [], "it was looked a moment ago"
    clock.now += LOOKED_WITHIN
    assert [line["round"] for line in view.news(first["seen"], 1)["rounds"]] == [2]


def test_a_look_that_fails_leaves_what_was_read_and_is_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, looks = Clock(), list[LiveRun]()
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}], rounds=3)
    view = View(ForeignRun(), path, clock=clock)
    first = view.news()
    assert "failed" not in first

    def fails(run: LiveRun) -> bool:
        looks.append(run)
        raise OSError("the disk is ill")

    clock.now += LOOKED_WITHIN
    with monkeypatch.context() as ill, caplog.at_level(logging.WARNING, "fedappeal.views.live.view"):
        ill.setattr(LiveRun, "read", fails)
        for _ in range(3):
            seen = first["seen"]
            assert view.news(seen, 1) == {"rounds": [], "anew": False, "seen": seen, "failed": True}
            assert view.news() == first | {"failed": True}, "a page that is opened now gets what was read"
        assert (len(looks), caplog.messages) == (1, ["page: OSError: the disk is ill"])
        assert View(ForeignRun(), path).news() == {"rounds": [], "anew": False, "seen": 0, "failed": True}
    clock.now += LOOKED_WITHIN
    later = view.news(first["seen"], 1)
    assert (later["anew"], [line["round"] for line in later["rounds"]]) == (True, [1])
    assert "failed" not in later


def test_a_superlink_is_not_asked_at_once_after_a_look_that_failed(
    superlink: SuperLinkOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    view = View(ForeignRun(), None, SUPERLINK, clock=clock)
    monkeypatch.setattr(ServedCertificate, "validity", lambda certificate: 1 / 0)
    assert view.news()["failed"]
    clock.now += LOOKED_WITHIN
    assert (view.news().get("failed"), superlink.asked) == (None, 1)
    clock.now += ASKED_EVERY
    assert (view.news().get("failed"), superlink.asked) == (True, 2)


def test_a_page_of_an_earlier_command_gets_everything(tmp_path: Path) -> None:
    view = View(ForeignRun(), a_run(tmp_path / "run", [{"accuracy": 0.5}], rounds=3))
    last = view.news()["seen"]
    assert not view.news(last, 1)["anew"]
    assert (view.news(last + 99, 7)["anew"], len(view.news(last + 99, 7)["rounds"])) == (True, 1)


def test_the_end_does_not_wait_for_a_slow_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = threading.Event(), threading.Event()
    called = []

    def slow(superlink: RemoteSuperLink) -> list[Node]:
        called.append(superlink)
        asked.set()
        answers.wait(60)
        return []

    monkeypatch.setattr(RemoteSuperLink, "nodes", slow)
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: [])
    monkeypatch.setattr("fedappeal.views.live.view._PATIENCE", 0.1)
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}], rounds=3)
    view = View(ForeignRun(), path, SUPERLINK)
    reader = threading.Thread(target=view.news)
    reader.start()
    assert asked.wait(30)
    began = time.monotonic()
    view.refresh_at_end()
    assert time.monotonic() - began < 30
    answers.set()
    reader.join(30)
    RunFolder.open(path).append(HISTORY, {"round": 2, "accuracy": 0.75, "seconds": 1.0})
    view._next_question = 0.0
    view.refresh_at_end()
    assert (len(called), view.news()["run"]["last"]) == (1, 2)


def test_a_page_that_is_open_when_its_run_ends_stays_for_a_moment(tmp_path: Path) -> None:
    clock, path = Clock(), a_run(tmp_path / "run", [{"accuracy": 0.5}], rounds=3)
    view = View(ForeignRun(), path, clock=clock)
    with RunFolder.open(path).alone():
        RunFolder.open(path).event("round", round=2)
        view.refresh()
        assert view.stays() == 0.0, "it goes on"
        RunFolder.open(path).event("interrupted")
        view.refresh()
        assert view.stays() == 0.0, "no page is open"
        clock.now += 1.0
        view.news()
        assert view.stays() == STAYS - 1.0
        clock.now += STAYS
        assert view.stays() == 0.0


def test_the_superlink_is_asked_at_times(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    clock = Clock()
    view = View(ForeignRun(), a_run(tmp_path / "run", []), SUPERLINK, clock=clock)
    for expected in (1, 1, 2):
        view.refresh()
        assert superlink.asked == expected
        clock.now += 0.6 * ASKED_EVERY


def test_a_superlink_that_is_slow_is_asked_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(), []

    def slow(superlink: RemoteSuperLink) -> list[Node]:
        asked.append(clock.now)
        clock.now += 2.0
        return []

    monkeypatch.setattr(RemoteSuperLink, "nodes", slow)
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: [])
    view = View(ForeignRun(), a_run(tmp_path / "run", []), SUPERLINK, clock=clock)
    for _ in range(40):
        view.refresh()
        clock.now += 1.0
    assert asked == [100.0, 117.0, 134.0]  # the longest wait, after each answer


def test_without_a_run_the_superlinks_latest_is_shown(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    clock = Clock()
    view = View(SubmittedRun(SUPERLINK), None, SUPERLINK, clock=clock)
    page = Page(view)
    superlink.nodes = [Node("key-1", 1, "anna", "online", "", "")]
    superlink.runs = [
        a_listed_run(1, "completed", ""),
        a_listed_run(2, "running", "relative"),
        a_listed_run(3, "running", "/nowhere"),
    ]
    page.look()
    assert view.path is None
    assert page.shown["clients"]["rows"][0]["name"] == "anna"
    assert page.shown["run"] is None
    first, second = a_run(tmp_path / "first", []), a_run(tmp_path / "second", [])
    for runs, expected in (
        ([a_listed_run(4, "completed", first)], first),
        ([a_listed_run(4, "running", first), a_listed_run(5, "failed", second)], second),
        ([a_listed_run(4, "running", first), a_listed_run(5, "pending", second)], second),
    ):
        superlink.runs = runs
        clock.now += 2 * ASKED_EVERY
        before, names = view.path, page.look()
        assert view.path == expected
        assert (names == ["all"]) == (before != expected)


def test_a_superlink_that_is_away_is_said_and_nodes_count_as_unknown(
    tmp_path: Path, superlink: SuperLinkOfTests
) -> None:
    clock = Clock()
    page = Page(View(ForeignRun(), a_run(tmp_path / "run", []), SUPERLINK, clock=clock))
    superlink.nodes = [Node("key-1", 1, "anna", "online", "", "")]
    page.look()
    assert page.shown["clients"]["online"] == 1
    superlink.away = True
    clock.now += 2 * ASKED_EVERY
    page.look()
    assert page.shown["superlink"]["problem"] == "the SuperLink does not answer"
    assert page.shown["clients"]["online"] is None


@pytest.mark.parametrize(("days", "warned"), [(20, True), (40, False)])
def test_a_certificate_that_ends_soon_is_said(
    days: int, warned: bool, superlink: SuperLinkOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr(ServedCertificate, "validity", lambda _: Validity(end - timedelta(days=90), end))
    superlink_shown = View(ForeignRun(), None, SUPERLINK).news()["superlink"]
    text = (
        f"the certificate of 127.0.0.1:8000 ends at {end:%Y-%m-%d %H:%M} UTC: renew it and start the SuperLink again"
    )
    assert superlink_shown["warning"] == (text if warned else "")


@pytest.mark.parametrize(
    ("name", "shown"), [("runs/first", "./data/first"), ("runs", "./data"), ("runs-2/first", "{}/runs-2/first")]
)
def test_a_page_in_a_container_names_folders_as_they_are_outside(
    name: str, shown: str, tmp_path: Path, superlink: SuperLinkOfTests
) -> None:
    run = a_run(tmp_path / name, [])
    superlink.runs = [a_listed_run(7, "completed", run)]
    news = View(ForeignRun(), None, SUPERLINK, runs_as=(str(tmp_path / "runs"), "./data")).news()
    assert news["run"]["folder"] == news["superlink"]["runs"][0]["folder"] == shown.format(tmp_path)


class Asked(ForeignRun):
    """Actions that take down what they were asked."""

    def __init__(self) -> None:
        self.stopped: list[int] = []
        self.resumed: list[tuple[Path, int]] = []

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, Any]:
        return {"stop": True, "resume": True, "extend": state == "finished", "commands": [], "files": []}

    def stop(self, run_id: int) -> str:
        self.stopped.append(run_id)
        return "stopped"

    def resume(self, path: Path, rounds: int = 0) -> str:
        self.resumed.append((path, rounds))
        return "it continues"


def test_a_run_is_stopped_by_its_id_or_as_the_one_that_is_shown(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    actions, path = Asked(), a_run(tmp_path / "run", [])
    superlink.runs = [a_listed_run(2**63, "running", path), a_listed_run(7, "running", "/other")]
    view = View(actions, path, SUPERLINK)
    view.refresh()
    assert view.stop("") == view.stop("7") == "stopped"
    assert actions.stopped == [2**63, 7]
    with pytest.raises(NotDone, match="knows no such run"):
        view.stop("8")


def test_a_stopped_run_is_known_from_the_superlink(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    path = a_run(tmp_path / "run", [])
    RunFolder.open(path).record(runtime={"kind": "submitted"})
    superlink.runs = [a_listed_run(1, "stopped", path)]
    view = View(SubmittedRun(SUPERLINK), path, SUPERLINK)
    page = Page(view)
    with RunFolder.open(path).alone():  # its process is ending
        page.look()
    assert page.shown["run"]["state"] == "stopped"
    actions = page.shown["actions"]
    assert actions == {"stop": False, "resume": False, "extend": False, "commands": (), "files": []}
    assert "actions" in page.look()
    assert page.shown["actions"] == {**actions, "resume": True, "extend": True}


@pytest.mark.parametrize("actions", [OwnRun(), ForeignRun()])
def test_what_is_not_offered_is_not_done(tmp_path: Path, actions: ForeignRun) -> None:
    view = View(actions, a_run(tmp_path / "run", []))
    view.refresh()
    with pytest.raises(NotDone, match="no run here that can be continued"):
        view.resume()


def test_a_run_is_chosen_and_the_latest_again(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    clock = Clock()
    first, second = a_run(tmp_path / "first", []), a_run(tmp_path / "second", [])
    superlink.runs = [a_listed_run(4, "completed", "first"), a_listed_run(5, "running", second)]
    view = View(ForeignRun(), None, SUPERLINK, root=tmp_path, clock=clock)
    view.refresh()
    assert (view.path, view.folder_of("4"), view.folder_of("")) == (second, first, second)
    view.choose("4")
    view.refresh()
    assert view.path == first
    shown = view.news()["superlink"]
    assert (shown["shown"], shown["latest"], [run["seen"] for run in shown["runs"]]) == ("4", False, [True, True])
    superlink.runs = [*superlink.runs, a_listed_run(6, "pending", "/not/here/yet")]
    clock.now += 2 * ASKED_EVERY
    view.refresh()
    assert view.path == first
    view.choose("")
    view.refresh()
    assert view.path is None
    assert view.news()["superlink"]["shown"] == "6"
    for act in (view.choose, view.folder_of):
        with pytest.raises(NotDone, match="knows no such run"):
            act("../first")
    with pytest.raises(NotDone, match="does not see"):
        view.folder_of("6")


def test_a_run_that_has_ended_is_extended_to_a_new_total(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    actions, path = Asked(), a_run(tmp_path / "run", [])
    view = View(actions, path, SUPERLINK)
    view.refresh()
    with pytest.raises(NotDone, match="no run here"):
        view.resume(9)
    RunFolder.open(path).event("finished", round=1)
    view.refresh()
    assert (view.resume(9), actions.resumed) == ("it continues", [(path, 9)])
    with pytest.raises(NotDone, match="no run here"):
        view.resume()  # a second click, before the SuperLink was asked
    view.refresh()
    assert (view.resume(), actions.resumed) == ("it continues", [(path, 9), (path, 0)])
    superlink.runs = [a_listed_run(4, "pending", path)]
    view.refresh()
    with pytest.raises(NotDone, match="no run here"):
        view.resume(12)  # it is under way, though its folder does not say so yet


def test_one_run_at_a_time_is_started_and_a_refused_start_changes_nothing(
    tmp_path: Path, superlink: SuperLinkOfTests
) -> None:
    class Slow(ForeignRun):
        def start(self, file: str) -> str:
            with pytest.raises(NotDone, match="a run is being started"):
                view.start(file)
            return super().start(file)

    superlink.runs = [a_listed_run(4, "completed", a_run(tmp_path / "run", [])), a_listed_run(5, "running", "")]
    view = View(Slow(), None, SUPERLINK)
    view.refresh()
    view.choose("4")
    view.refresh()
    for _ in range(2):
        with pytest.raises(NotDone, match="no run is started"):
            view.start("daily.toml")
    view.refresh()
    assert view.path == tmp_path / "run"


def test_a_run_whose_folder_cannot_be_looked_at_is_not_seen(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    seen = a_run(tmp_path / "run", [])
    superlink.runs = [a_listed_run(4, "completed", seen), a_listed_run(5, "running", "/" + 5000 * "a")]
    view = View(ForeignRun(), None, SUPERLINK)
    view.refresh()
    assert (view.path, view.latest_folder()) == (None, None)


def test_a_run_whose_process_has_gone_is_over_and_the_superlink_is_asked_at_once(
    tmp_path: Path, superlink: SuperLinkOfTests
) -> None:
    """As when another process stops it: the folder says nothing, its lock does."""
    path, clock = a_run(tmp_path / "run", []), Clock()
    superlink.runs = [a_listed_run(1, "running", path)]
    view, states, folder = View(ForeignRun(), path, SUPERLINK, clock=clock), [], RunFolder.open(path)
    with folder.alone():
        folder.event("round", round=1)
        view.refresh()
        states.append(view.news()["run"]["state"])
    superlink.runs = [a_listed_run(1, "stopped", path)]
    for _ in range(2):
        view.refresh()
        states.append(view.news()["run"]["state"])
    assert states == ["running", "interrupted", "stopped"]
    assert view.over
