"""Trackers at work: what they are told, what a bad one does to a run (nothing), and how they continue."""

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedappeal
from fedappeal.cli.command_observers import CommandObservers
from fedappeal.cli.start import start_simulations
from fedappeal.record.lines import CONFIG, EVENTS, HISTORY, MODEL, append_lines, rewrite, seal_lines
from fedappeal.record.reader import FAILED, FINISHED, INTERRUPTED, Record
from fedappeal.runs.launch.in_process import InProcess
from fedappeal.runs.launch.observers import RunUnfinished
from fedappeal.runs.plan import swept_plans
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import replace_file
from fedappeal.views.tracking import tracker_threads
from fedappeal.views.tracking.tracker import TrackedRun
from fedappeal.views.tracking.tracker_threads import Following, numbers, record_of, track_run, tracked_run
from tests.views.tracking.recorder import Hanging, Kept, Raising
from tests.warm import warm_spawn

QUICK: dict[str, Any] = {
    **{"model": "logistic", "clients": 3, "rounds": 4, "local_steps": 2, "requirement": "fixed", "quiet": True},
    "mandatory_rounds": 0,
}


@pytest.fixture(autouse=True)
def nothing_told() -> Iterator[None]:
    Kept.told.clear()
    yield
    Kept.told.clear()


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A folder as a run leaves it after its beginning."""
    settings = {"task": "digits", "seed": 3, "strategy": "maxfl", "rounds": 9, "maxfl.server-lr": 0.5}
    record = {"settings": settings, "run-key": "0" * 16, "versions": {"flwr": "1.39.0"}}
    (tmp_path / CONFIG).write_text(json.dumps(record))
    return tmp_path


def line(number: int, **more: float) -> dict[str, Any]:
    return {"round": number, "loss": 1 / number, **more}


def rounds_told() -> list[object]:
    return [number for number, _ in Kept.of("round")]


def test_a_tracker_is_told_what_the_runs_folder_holds(tmp_path: Path) -> None:
    run = fedappeal.simulate("maxfl", out=tmp_path / "run", track=Kept, **QUICK)
    ((begun,),) = Kept.of("begin")
    assert isinstance(begun, TrackedRun)
    assert (begun.folder, begun.id, begun.after) == (run.path, "", 0)
    assert begun.settings == Record(run.path).config["settings"]
    assert begun.settings["maxfl.stabilizer"] == 0.001
    assert (begun.tags["strategy"], begun.tags["task"], begun.tags["seed"]) == ("maxfl", "digits", "0")
    assert begun.tags["version-flwr"].startswith("1.39")
    history = Record(run.path).history
    wanted = [(each["round"], {k: v for k, v in each.items() if k not in ("round", "failures")}) for each in history]
    assert Kept.of("round") == wanted
    assert len(wanted) == 4
    assert Kept.of("model") == [(run.path / MODEL,)]
    assert Kept.told[-1] == ("end", FINISHED)


def test_numbers_are_all_of_a_line_but_the_round() -> None:
    given = {"round": 3, "loss": math.inf, "mandatory": True, "bytes_up": 7, "failures": {"c": "x"}, "huge": 10**400}
    assert numbers(given) == {"loss": math.inf, "mandatory": 1.0, "bytes_up": 7.0}


@pytest.mark.parametrize("method", ["begin", "round", "model", "end"])
def test_a_tracker_that_raises_is_dropped_with_one_line_and_the_run_is_the_same(tmp_path: Path, method: str) -> None:
    with pytest.warns(UserWarning, match="raising") as warned:
        run = fedappeal.simulate(
            "maxfl", out=tmp_path / "run", track=[Raising, Kept], set={"raising.method": method}, **QUICK
        )
    told = [str(each.message) for each in warned]
    assert told == [f"the tracker raising is dropped: SystemExit: no {method} here; the run is not touched"]
    assert run.finished
    assert rounds_told() == [1, 2, 3, 4]


def test_a_tracker_that_hangs_is_left_behind(run_folder: Path) -> None:
    said: list[str] = []
    thread = Following("hanging", Hanging, run_folder, said.append, patience=0.2)
    thread.start()
    thread.over(FINISHED)
    thread.wait()
    assert thread.is_alive()
    assert said == ["the tracker hanging is dropped: no answer for 0.2 s; the run is not touched"]
    Hanging.go.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(said) == 1


def test_a_continued_run_continues_its_trackers_run_and_records_each_round_once(tmp_path: Path) -> None:
    run = fedappeal.simulate("maxfl", out=tmp_path / "run", track=Kept, **QUICK)
    again = fedappeal.load(run.path, track=Kept)
    again.resume(rounds=6)
    first, second = (begun for (begun,) in Kept.of("begin"))
    assert isinstance(first, TrackedRun)
    assert isinstance(second, TrackedRun)
    assert (second.id, second.after) == ("id-of-run", 4)
    assert rounds_told() == [1, 2, 3, 4, 5, 6]
    assert json.loads(record_of(run.path, "kept").read_text()) == {"id": "id-of-run", "round": 6, "resumed": 1}


def test_a_run_that_clears_up_half_written_files_costs_no_tracker(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def replace(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise FileNotFoundError(path)
        replace_file(path, content)

    monkeypatch.setattr(tracker_threads, "replace_file", replace)
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        pass
    assert len(calls) > 1
    assert json.loads(record_of(run_folder, "kept").read_text())["id"] == f"id-of-{run_folder.name}"


def test_rounds_that_a_continued_run_runs_again_are_recorded_again(run_folder: Path) -> None:
    record_of(run_folder, "kept").write_text(json.dumps({"id": "a", "round": 5}))
    append_lines(run_folder / HISTORY, [line(number) for number in (1, 2, 3)])  # its checkpoint was that of round 3
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        append_lines(run_folder / HISTORY, [])
    assert rounds_told() == []
    append_lines(run_folder / HISTORY, [line(number) for number in (4, 5, 6)])
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        pass
    assert rounds_told() == [4, 5, 6]


def test_a_resumed_runs_rounds_are_recorded_again_whatever_a_read_sees_of_them(run_folder: Path) -> None:
    """Between two looks a run that had recorded 5 rounds was resumed after round 2 and ran on to round 9."""
    append_lines(run_folder / HISTORY, [line(number) for number in (1, 2, 3, 4, 5)])
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        wait_for_rounds(5)
        rewrite(run_folder / HISTORY, seal_lines([line(number) for number in (1, 2)]))
        append_lines(run_folder / EVENTS, [{"event": "resumed", "round": 2}])
        append_lines(run_folder / HISTORY, [line(number) for number in (3, 4, 5, 6, 7, 8, 9)])
    assert rounds_told() == [1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9]


def test_a_run_that_was_resumed_while_nothing_followed_it_is_recorded_from_there(run_folder: Path) -> None:
    append_lines(run_folder / HISTORY, [line(number) for number in (1, 2, 3, 4, 5)])
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        wait_for_rounds(5)
    rewrite(run_folder / HISTORY, seal_lines([line(number) for number in (1, 2)]))
    append_lines(run_folder / EVENTS, [{"event": "resumed", "round": 2}])
    append_lines(run_folder / HISTORY, [line(number) for number in (3, 4, 5, 6)])
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        pass
    with track_run(run_folder, {"kept": Kept}, pytest.fail):  # nothing is recorded twice
        pass
    assert rounds_told() == [1, 2, 3, 4, 5, 3, 4, 5, 6]


def test_a_tracker_is_made_in_its_own_thread_and_a_failure_there_is_one_line(run_folder: Path) -> None:
    said: list[str] = []
    threads: list[str] = []

    class Slow(Kept):
        name = "slow"

        def __init__(self) -> None:
            super().__init__()
            threads.append(threading.current_thread().name)
            if len(threads) == 2:
                raise SystemExit("no server\nhere")

    with track_run(run_folder, {"slow": Slow}, said.append):
        pass
    with track_run(run_folder, {"slow": Slow}, said.append):
        pass
    assert threads == ["tracker-slow"] * 2
    assert said == ["the tracker slow is dropped: SystemExit: no server here; the run is not touched"]


def wait_for_rounds(count: int) -> None:
    until = time.monotonic() + 30
    while len(rounds_told()) < count and time.monotonic() < until:
        time.sleep(0.01)


def test_a_tracker_that_comes_later_is_told_of_all_rounds(run_folder: Path) -> None:
    append_lines(run_folder / HISTORY, [line(number) for number in (1, 2, 3)])
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        pass
    assert Kept.of("round") == [(n, {"loss": 1 / n}) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("events", "how"),
    [
        ([{"event": "round", "round": 1}], INTERRUPTED),
        ([{"event": "round", "round": 1}, {"event": "finished", "round": 1, "reason": ""}], FINISHED),
        ([{"event": "failed", "reason": "x"}], FAILED),
        ([{"event": "failed", "reason": "x"}, {"event": "resumed", "round": 0}], INTERRUPTED),
    ],
)
def test_how_a_run_ended_is_read_from_its_events(run_folder: Path, events: list[dict[str, Any]], how: str) -> None:
    append_lines(run_folder / EVENTS, events)
    (run_folder / MODEL).write_bytes(b"")
    with track_run(run_folder, {"kept": Kept}, pytest.fail):
        pass
    assert Kept.of("end") == [(how,)]
    assert bool(Kept.of("model")) == (how == FINISHED)


def test_an_exception_ends_the_trackers_run_as_failed(run_folder: Path) -> None:
    with pytest.raises(ValueError, match="here"), track_run(run_folder, {"kept": Kept}, pytest.fail):
        raise ValueError("here")
    assert Kept.of("end") == [(FAILED,)]


def test_a_folder_that_is_never_there_and_a_damaged_record_are_one_line(run_folder: Path) -> None:
    said: list[str] = []
    with track_run(run_folder / "elsewhere", {"kept": Kept}, said.append):
        pass
    assert said == [
        f"the tracker kept is dropped: the run's folder '{run_folder / 'elsewhere'}' is not seen from here; "
        "the run is not touched"
    ]
    record_of(run_folder, "kept").write_text("[]")
    with pytest.raises(ConfigError, match=r"tracker-kept\.json' cannot be read"):
        tracked_run(run_folder, "kept")


def test_the_runs_of_a_sweep_are_tracked_each_by_itself(tmp_path: Path) -> None:
    settings = {"model": "logistic", "clients": 3, "rounds": 2, "local-steps": 2, "requirement": "fixed"}
    plans = swept_plans(settings, ["seed=0,1,2"], str(tmp_path / "sweep"))
    (plans[2].path / "participation.jsonl").mkdir(parents=True)  # it cannot be written: that run fails
    with warm_spawn(), pytest.raises(RunUnfinished):
        start_simulations(plans, InProcess(Simulation("auto", "cpu", "", 1)), CommandObservers({"kept": Kept}))
    assert sorted(begun.name for (begun,) in Kept.of("begin")) == ["seed-0", "seed-1", "seed-2"]  # type: ignore[attr-defined]
    assert sorted(rounds_told()) == [1, 1, 2, 2]  # type: ignore[type-var]
    assert sorted(how for (how,) in Kept.of("end")) == [FAILED, FINISHED, FINISHED]  # type: ignore[type-var]
