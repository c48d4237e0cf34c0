"""How far simulated runs are, where the output is a file or a pipe: lines, flushed, not too many, and the last."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedappeal.record.lines import HISTORY
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.views.terminal.progress import one_run, several_runs
from fedappeal.views.terminal.view import RunView
from server.build import run_plugins


class Flushed(io.StringIO):
    """A file that tells what has been flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = ""

    def flush(self) -> None:
        self.shown = self.getvalue()

    def lines(self) -> list[str]:
        assert self.shown == self.getvalue(), "not flushed"
        return self.shown.splitlines()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_round(number: int) -> Mapping[str, Any]:
    return {"round": number, "joined": 2, "sat_out": 0, "left": 0, "seconds": 0.5, "decisions": {}}


def rounds_shown(seconds: list[float], fails: bool = False) -> list[int]:
    """Which rounds are printed, by the seconds that each takes."""
    out, clock = Flushed(), Clock()
    view = RunView(
        RunPlan.of(RunConfig(clients=2, rounds=len(seconds)), Path("here")), Console(file=out, width=100), data=""
    )
    try:
        with one_run(view, "run", clock) as on_round:
            for number, each in enumerate(seconds, 1):
                clock.now += each
                on_round(a_round(number))
                assert out.shown == out.getvalue()
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    columns = [line.split()[0].rstrip("*") for line in out.lines()]
    return [int(first) for first in columns if first.isdigit()]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ([3.0] * 4, [1, 2, 3, 4]),
        ([2.0, 2.0, 1.5, 1.5], [1, 2, 4]),
        ([0.5] * 12, [1, 5, 9, 12]),
        ([0.0] * 50, [1, 50]),
        ([0.125], [1]),
    ],
)
def test_a_line_a_round_or_one_in_two_seconds_and_the_last(seconds: list[float], shown: list[int]) -> None:
    assert rounds_shown(seconds) == shown


def test_the_last_round_is_shown_where_the_run_is_interrupted_too() -> None:
    assert rounds_shown([0.0] * 3, fails=True) == [1, 3]


def test_several_runs_say_when_each_ends_and_now_and_then_how_far_they_are(tmp_path: Path) -> None:
    out, clock = Flushed(), Clock()
    jobs = [
        RunPlan(run_plugins(config := RunConfig(seed=seed, rounds=9)), tmp_path / str(seed), f"seed-{seed}")
        for seed in (0, 1, 2)
    ]
    folders = [RunPlan.of(config, job.path).folder({}) for job in jobs]
    with several_runs(jobs, Console(file=out, width=100, highlight=False), clock) as shown:
        for _ in range(39):
            clock.now += 0.25
            shown.update()
        assert out.lines() == []
        folders[0].append(HISTORY, {"round": 1}, {"round": 2})
        folders[1].append(HISTORY, {"round": 1})
        clock.now += 0.25
        shown.update()
        assert out.lines() == ["0 of 3 runs have ended; seed-0 round 2 of 9; seed-1 round 1 of 9"]
        folders[0].append(HISTORY, {"round": 9, "gm_appeal": 0.25, "accuracy": 0.5})
        shown.ended(0, "")
        shown.ended(1, "device = '[x]' is not allowed")
        clock.now += 10.0
        shown.update()
        shown.ended(2, "")
        folders[2].append(HISTORY, {"round": 9, "accuracy_lowest": 0.5})
        shown.ended(2, "")
    assert out.lines()[1:] == [
        "seed-0: after round 9: GM-Appeal 0.250 accuracy 0.500 (1 of 3 runs have ended)",
        "seed-1 failed: device = '[x]' is not allowed (2 of 3 runs have ended)",
        "2 of 3 runs have ended",
        "seed-2: no rounds were run (3 of 3 runs have ended)",
        "seed-2: after round 9: no client has measured the model (3 of 3 runs have ended)",
    ]


def test_in_a_terminal_the_bar_stays(tmp_path: Path) -> None:
    out = Flushed()
    console = Console(file=out, width=80, force_terminal=True)
    view = RunView(RunPlan.of(RunConfig(clients=2, rounds=4), tmp_path), console, data="")
    with one_run(view, "run") as on_round:
        on_round(a_round(4))
    assert "4/4" in out.getvalue()
    assert "sat out" not in out.getvalue()
