"""What open pages are told: sections that changed, new rounds, and everything where a run was read anew."""

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
from fedappeal.views.live.view import ASKED_EVERY, View
from tests.views.comparison.recorded import a_run

SUPERLINK = RemoteSuperLink("127.0.0.1:8000")


class Pages:
    """Takes down what pages are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def __call__(self, name: str, data: object) -> None:
        self.told.append((name, data))

    def names(self) -> list[str]:
        names, self.told = [name for name, _ in self.told], []
        return names


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
    view, pages = View(ForeignRun(), path), Pages()
    view.refresh(pages)
    pages.names()
    name, everything = view.everything()
    assert name == "all"
    assert isinstance(everything, dict)
    assert [line["round"] for line in everything["rounds"]] == [1]
    view.refresh(pages)
    assert pages.names() == []
    RunFolder.open(path).append(HISTORY, {"round": 2, "accuracy": 0.75, "seconds": 1.0})
    view.refresh(pages)
    assert [(name, data) for name, data in pages.told if name == "rounds"] == [
        ("rounds", [{"round": 2, "accuracy": 0.75, "seconds": 1.0}])
    ]
    assert pages.names() == ["rounds", "run"]
    RunFolder.open(path).event("refused", node="7", reason="another protocol")
    view.refresh(pages)
    assert pages.names() == ["refused"]


def test_a_run_that_continues_is_told_from_its_start(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}] * 2, rounds=3)
    view, pages = View(ForeignRun(), path), Pages()
    view.refresh(pages)
    pages.names()
    folder = RunFolder.open(path)
    folder.forget_after(1)
    folder.event("resumed", round=1)
    view.refresh(pages)
    assert pages.names() == ["all"]


def test_the_superlink_is_asked_at_times(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    clock = Clock()
    view = View(ForeignRun(), a_run(tmp_path / "run", []), SUPERLINK, clock=clock)
    for expected in (1, 1, 2):
        view.refresh(Pages())
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
        view.refresh(Pages())
        clock.now += 1.0
    assert asked == [100.0, 117.0, 134.0]  # the longest wait, after each answer


def test_without_a_run_the_superlinks_latest_is_shown(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    clock, pages = Clock(), Pages()
    view = View(SubmittedRun(SUPERLINK), None, SUPERLINK, clock=clock)
    superlink.nodes = [Node("key-1", 1, "anna", "online", "", "")]
    superlink.runs = [
        a_listed_run(1, "completed", ""),
        a_listed_run(2, "running", "relative"),
        a_listed_run(3, "running", "/nowhere"),
    ]
    view.refresh(pages)
    assert view.path is None
    assert dict(pages.told)["clients"]["rows"][0]["name"] == "anna"
    assert view.everything()[1]["run"] is None  # type: ignore[index]
    pages.names()
    first, second = a_run(tmp_path / "first", []), a_run(tmp_path / "second", [])
    for runs, expected in (
        ([a_listed_run(4, "completed", first)], first),
        ([a_listed_run(4, "running", first), a_listed_run(5, "failed", second)], second),
        ([a_listed_run(4, "running", first), a_listed_run(5, "pending", second)], second),
    ):
        superlink.runs = runs
        clock.now += 2 * ASKED_EVERY
        before, pages = view.path, Pages()
        view.refresh(pages)
        assert view.path == expected
        assert ("all" in pages.names()) == (before != expected)


def test_a_superlink_that_is_away_is_said_and_nodes_count_as_unknown(
    tmp_path: Path, superlink: SuperLinkOfTests
) -> None:
    clock, pages = Clock(), Pages()
    view = View(ForeignRun(), a_run(tmp_path / "run", []), SUPERLINK, clock=clock)
    superlink.nodes = [Node("key-1", 1, "anna", "online", "", "")]
    view.refresh(pages)
    assert dict(pages.told)["clients"]["online"] == 1
    superlink.away = True
    clock.now += 2 * ASKED_EVERY
    view.refresh(pages)
    sections = dict(pages.told)
    assert sections["superlink"]["problem"] == "the SuperLink does not answer"
    assert sections["clients"]["online"] is None


@pytest.mark.parametrize(("days", "warned"), [(20, True), (40, False)])
def test_a_certificate_that_ends_soon_is_said(
    days: int, warned: bool, superlink: SuperLinkOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr(ServedCertificate, "validity", lambda _: Validity(end - timedelta(days=90), end))
    pages = Pages()
    View(ForeignRun(), None, SUPERLINK).refresh(pages)
    text = (
        f"the certificate of 127.0.0.1:8000 ends at {end:%Y-%m-%d %H:%M} UTC: renew it and start the SuperLink again"
    )
    assert dict(pages.told)["superlink"]["warning"] == (text if warned else "")


@pytest.mark.parametrize(
    ("name", "shown"), [("runs/first", "./data/first"), ("runs", "./data"), ("runs-2/first", "{}/runs-2/first")]
)
def test_a_page_in_a_container_names_folders_as_they_are_outside(
    name: str, shown: str, tmp_path: Path, superlink: SuperLinkOfTests
) -> None:
    run = a_run(tmp_path / name, [])
    superlink.runs = [a_listed_run(7, "completed", run)]
    pages = Pages()
    View(ForeignRun(), None, SUPERLINK, runs_as=(str(tmp_path / "runs"), "./data")).refresh(pages)
    ((_, everything),) = pages.told
    assert everything["run"]["folder"] == everything["superlink"]["runs"][0]["folder"] == shown.format(tmp_path)


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
    view.refresh(Pages())
    assert view.stop("") == view.stop("7") == "stopped"
    assert actions.stopped == [2**63, 7]
    with pytest.raises(NotDone, match="knows no such run"):
        view.stop("8")


def test_a_stopped_run_is_known_from_the_superlink(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    path = a_run(tmp_path / "run", [])
    RunFolder.open(path).record(runtime={"kind": "submitted"})
    superlink.runs = [a_listed_run(1, "stopped", path)]
    view, pages = View(SubmittedRun(SUPERLINK), path, SUPERLINK), Pages()
    with RunFolder.open(path).alone():  # its process is ending
        view.refresh(pages)
    sections = dict(pages.told)
    assert sections["run"]["state"] == "stopped"
    assert sections["actions"] == {"stop": False, "resume": False, "extend": False, "commands": (), "files": []}
    view.refresh(pages)
    assert pages.told[-1] == ("actions", {**sections["actions"], "resume": True, "extend": True})


@pytest.mark.parametrize("actions", [OwnRun(), ForeignRun()])
def test_what_is_not_offered_is_not_done(tmp_path: Path, actions: ForeignRun) -> None:
    view = View(actions, a_run(tmp_path / "run", []))
    view.refresh(Pages())
    with pytest.raises(NotDone, match="no run here that can be continued"):
        view.resume()


def test_a_run_is_chosen_and_the_latest_again(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    clock, pages = Clock(), Pages()
    first, second = a_run(tmp_path / "first", []), a_run(tmp_path / "second", [])
    superlink.runs = [a_listed_run(4, "completed", "first"), a_listed_run(5, "running", second)]
    view = View(ForeignRun(), None, SUPERLINK, root=tmp_path, clock=clock)
    view.refresh(pages)
    assert (view.path, view.folder_of("4"), view.folder_of("")) == (second, first, second)
    view.choose("4")
    view.refresh(pages)
    assert view.path == first
    shown = dict(pages.told)["all"]["superlink"]
    assert (shown["shown"], shown["latest"], [run["seen"] for run in shown["runs"]]) == ("4", False, [True, True])
    superlink.runs = [*superlink.runs, a_listed_run(6, "pending", "/not/here/yet")]
    clock.now += 2 * ASKED_EVERY
    view.refresh(pages)
    assert view.path == first
    view.choose("")
    view.refresh(pages)
    assert view.path is None
    assert view.everything()[1]["superlink"]["shown"] == "6"  # type: ignore[index]
    for act in (view.choose, view.folder_of):
        with pytest.raises(NotDone, match="knows no such run"):
            act("../first")
    with pytest.raises(NotDone, match="does not see"):
        view.folder_of("6")


def test_a_run_that_has_ended_is_extended_to_a_new_total(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    actions, path = Asked(), a_run(tmp_path / "run", [])
    view = View(actions, path, SUPERLINK)
    view.refresh(Pages())
    with pytest.raises(NotDone, match="no run here"):
        view.resume(9)
    RunFolder.open(path).event("finished", round=1)
    view.refresh(Pages())
    assert (view.resume(9), actions.resumed) == ("it continues", [(path, 9)])
    with pytest.raises(NotDone, match="no run here"):
        view.resume()  # a second click, before the SuperLink was asked
    view.refresh(Pages())
    assert (view.resume(), actions.resumed) == ("it continues", [(path, 9), (path, 0)])
    superlink.runs = [a_listed_run(4, "pending", path)]
    view.refresh(Pages())
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
    view.refresh(Pages())
    view.choose("4")
    view.refresh(Pages())
    for _ in range(2):
        with pytest.raises(NotDone, match="no run is started"):
            view.start("daily.toml")
    view.refresh(Pages())
    assert view.path == tmp_path / "run"


def test_a_run_whose_folder_cannot_be_looked_at_is_not_seen(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    seen = a_run(tmp_path / "run", [])
    superlink.runs = [a_listed_run(4, "completed", seen), a_listed_run(5, "running", "/" + 5000 * "a")]
    view = View(ForeignRun(), None, SUPERLINK)
    view.refresh(Pages())
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
        view.refresh(Pages())
        states.append(view.everything()[1]["run"]["state"])  # type: ignore[index]
    superlink.runs = [a_listed_run(1, "stopped", path)]
    for _ in range(2):
        view.refresh(Pages())
        states.append(view.everything()[1]["run"]["state"])  # type: ignore[index]
    assert states == ["running", "interrupted", "stopped"]
    assert view.over
