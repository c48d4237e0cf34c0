"""What a client remembers of what it did: counted, bounded, for its owner alone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from client.state.activity import ACTIVITY, KEPT_RUNS, Activity, Judged, judged_of
from client.state.store import DiskStore
from fedappeal.core.requirement import METRIC, UNMEASURED, Evaluation, Requirement
from fedappeal.system.locks import CHANGES
from tests.node import Node, run_config

RUN = {"strategy": "maxfl", "task": "digits", "rounds": 3}
SAT_OUT = Judged(0.4125, 0.388, "loss", "train", False)


class Clock:
    now = 1_795_341_500.0

    def __call__(self) -> float:
        return self.now


def test_answers_are_added_up_by_run(tmp_path: Path) -> None:
    clock = Clock()
    activity = Activity(tmp_path, clock)
    assert activity.runs() == {}
    activity.answered("a", RUN, bytes_down=1_000_000)
    clock.now += 600
    activity.answered("a", RUN, done="joined", seconds=1.25, bytes_up=2_000_000, bytes_down=1_000_000, server_round=1)
    activity.answered("b", {}, done="failed")
    activity.answered("a", RUN, done="sat-out", seconds=0.5, bytes_up=10, server_round=2, judged=SAT_OUT)
    activity.answered("a", RUN, done="evaluated", seconds=0.25, server_round=3)
    runs = Activity(tmp_path).runs()
    assert list(runs) == ["b", "a"], "that served last at the end"
    run = runs["a"]
    assert (run.strategy, run.task) == ("maxfl", "digits")
    assert run.done == {"joined": 1, "sat-out": 1, "evaluated": 1}
    assert (run.seconds, run.bytes_up, run.bytes_down) == (2.0, 2_000_010, 2_000_000)
    assert (run.first, run.last - run.first) == (1_795_341_500.0, 600.0)
    assert (run.server_round, run.judged) == (2, SAT_OUT), "round 3 judged no model"
    assert runs["b"].done == {"failed": 1}


def test_a_rest_stands_among_the_decisions_of_each_run_that_may_ask_again(tmp_path: Path) -> None:
    clock = Clock()
    activity = Activity(tmp_path, clock)
    activity.rested("hours = 22-6")
    assert not (tmp_path / ACTIVITY).exists(), "no run, nothing to say"
    for key, decided in (("a", "joined on request"), ("b", "sat out"), ("c", "left for good"), ("d", "joined")):
        activity.answered(key, RUN, server_round=7, decided=(decided, "why"))
    activity.end("d", "over")
    for reason in ("hours = 22-6", "mains-only: the device is on battery"):
        clock.now += 60
        activity.rested(reason)
    activity.answered("b", RUN, server_round=9, decided=("joined", "why"))
    decisions = {
        key: [(d.server_round, d.what, d.why) for d in run.decisions] for key, run in activity.runs().items()
    }
    rest = (7, "rested", "mains-only: the device is on battery")
    assert decisions == {
        "a": [(7, "joined on request", "why"), rest],
        "b": [(7, "sat out", "why"), rest, (9, "joined", "why")],
        "c": [(7, "left for good", "why")],
        "d": [(7, "joined", "why")],
    }
    assert activity.runs()["a"].decisions[-1].at == clock.now


def test_an_owner_reads_it_in_three_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.localtime", lambda seconds: __import__("time").gmtime(seconds))
    clock = Clock()
    activity = Activity(tmp_path, clock)
    activity.answered("a", RUN, done="joined", seconds=1.25, bytes_up=2_340_000, server_round=1)
    activity.answered("a", RUN, done="sat-out", server_round=2, judged=SAT_OUT)
    clock.now += 3600
    activity.answered("a", RUN, done="failed")
    activity.answered("b", {}, server_round=4, judged=Judged(0.75, 0.5, "accuracy", "test", True, "at least"))
    runs = activity.runs()
    assert runs["a"].lines() == [
        "maxfl on digits, 2026-11-22 09:58 to 10:58",
        "joined 1 round, sat out 1, failed 1; 1.2 s of work; 2.3 MB up, 0.0 MB down",
        "round 2: training loss 0.4125, required below 0.3880: not met",
    ]
    assert runs["b"].lines() == [
        "a run of another kind, 2026-11-22 10:58",
        "joined 0 rounds, sat out 0; 0.0 s of work; 0.0 MB up, 0.0 MB down",
        "round 4: test accuracy 0.7500, required at least 0.5000: met",
    ]


def test_the_runs_served_longest_ago_are_forgotten_first(tmp_path: Path) -> None:
    activity = Activity(tmp_path)
    for number in range(KEPT_RUNS):
        activity.answered(f"run-{number}", RUN)
    activity.answered("run-0", RUN)
    activity.answered("new", RUN)
    assert list(activity.runs()) == [*(f"run-{number}" for number in range(2, KEPT_RUNS)), "run-0", "new"]


def test_what_a_server_calls_its_run_can_be_printed(tmp_path: Path) -> None:
    activity = Activity(tmp_path)
    activity.answered("a", {"strategy": "\x1b[2Jmine\n", "task": "x" * 5000})
    run = activity.runs()["a"]
    assert run.strategy == "?[2Jmine?"
    assert len(run.task) == 80


@pytest.mark.parametrize("content", ["{", "[1]", '[{"run_key": "a"}]', ""])
def test_a_file_that_is_broken_is_begun_anew_with_a_warning(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ACTIVITY).write_text(content)
    activity = Activity(tmp_path)
    activity.answered("a", RUN, done="joined")
    assert "cannot be read, and is begun anew" in caplog.text
    assert list(activity.runs()) == ["a"]


def test_a_folder_that_takes_no_file_does_not_end_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Activity(tmp_path / "gone").answered("a", RUN)
    assert "cannot be written" in caplog.text


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    Activity(tmp_path).answered("a", RUN)
    assert {path.name for path in tmp_path.iterdir()} == {ACTIVITY, CHANGES}
    assert DiskStore(tmp_path).names() == [], "it is no record, and keeps none from being read"
    assert json.loads((tmp_path / ACTIVITY).read_text())[0]["run_key"] == "a"


@pytest.mark.parametrize(
    ("evaluation", "requirement", "noted"),
    [
        (Evaluation(0.5, 0.9), Requirement(0.4), Judged(0.5, 0.4, "loss", "train", False)),
        (Evaluation(0.3, 0.9), Requirement(0.4), Judged(0.3, 0.4, "loss", "train", True)),
        (Evaluation(0.3, 0.9), Requirement(0.8, of=METRIC), Judged(0.9, 0.8, "accuracy", "train", True, "at least")),
        (UNMEASURED, Requirement(0.4), None),
    ],
)
def test_what_was_judged_is_noted_once(
    evaluation: Evaluation, requirement: Requirement, noted: Judged | None
) -> None:
    assert judged_of(evaluation, requirement, "train") == noted


def test_a_judgement_says_figure_and_requirement() -> None:
    assert str(SAT_OUT) == "loss 0.412, requirement 0.388"
    assert str(Judged(0.75, 0.5, "accuracy", "test", True)) == "accuracy 0.750, requirement 0.500"


@pytest.mark.parametrize("durable", [True, False])
def test_a_client_notes_what_it_decides_by_where_its_memory_lasts(durable: bool, tmp_path: Path) -> None:
    config = run_config(clients=4, solo__steps=3, local_steps=1, mandatory_rounds=0)
    node = Node(config, tmp_path if durable else None)
    node("query")
    outcome = node.outcome("train")
    noted: Any = outcome.judged
    assert (outcome.what, outcome.told["decision"]) == ("sat out", 0)
    assert (noted is not None) == durable
    if durable:
        assert (noted.of, noted.split, noted.met) == ("loss", "train", False)
        assert noted.figure > noted.requirement
        assert math.isfinite(noted.figure)
        assert not any(
            "requirement" in str(record) for record in outcome.reply(node.message("train")).content.values()
        )
    outcome = node.outcome("evaluate")
    noted, metrics = outcome.judged, outcome.told
    assert (noted is not None) == durable
    if durable:
        assert (noted.split, noted.figure) == ("test", metrics["loss"])
