"""Pictures over the rounds: what the mean of a label's runs is once some have ended."""

from pathlib import Path

import pytest

from fedappeal.studies.experiment import Arm, RunResult
from fedappeal.studies.pictures import over_rounds
from fedappeal.views.comparison.measures import new_figure


def run(seed: int, accuracies: list[float]) -> RunResult:
    lines = [{"round": at, "accuracy": value} for at, value in enumerate(accuracies, 1)]
    return RunResult(Arm("a row"), seed, lines, Path())


def test_a_run_that_has_ended_keeps_its_model_and_a_dot_marks_the_last_ones_end() -> None:
    """Means of 50 and 70, 75 and 70, 75 and 25 %; after round 3 both keep their models."""
    pytest.importorskip("matplotlib")
    axes = new_figure(4, 3).subplots()
    runs_of = {"ends": [run(0, [0.5, 0.75]), run(1, [0.7, 0.7, 0.25])], "goes on": [run(0, [0.1, 0.2, 0.3, 0.4])]}
    over_rounds(axes, ("accuracy", "accuracy %", True), runs_of, ("goes on", "ends"), ("a mark", lambda lines: [2]))
    drawn = [(list(line.get_xdata()), pytest.approx(list(line.get_ydata()))) for line in axes.lines]
    assert ([1, 2, 3, 4], [60, 72.5, 50, 50]) in drawn
    assert ([3], [50]) in drawn, "the dot"
    assert ([1, 2], [50, 75]) in drawn, "a seed's own line ends with it"
    assert ([4], [40]) not in drawn
    assert sum(list(line.get_xdata()) == [2, 2] for line in axes.lines) == 3, "a mark a run"
    (ends, goes_on) = (next(line for line in axes.lines if line.get_label() == name) for name in runs_of)
    assert ends.get_color() != goes_on.get_color()
    assert axes.get_legend_handles_labels()[1] == [*runs_of, "a mark", "one seed", "the last run ends"]


def test_the_legend_names_nothing_that_is_not_drawn() -> None:
    pytest.importorskip("matplotlib")
    axes = new_figure(4, 3).subplots()
    runs_of = {"a row": [run(0, [0.5, 0.75])]}
    over_rounds(axes, ("accuracy", "accuracy %", True), runs_of, ("a row",), ("a mark", lambda lines: []))
    assert axes.get_legend_handles_labels()[1] == ["a row"]


def test_a_mean_has_only_the_rounds_that_were_evaluated() -> None:
    """An ended run keeps its model in rounds 3 and 4, too, of which the other run has evaluated only the fourth."""
    pytest.importorskip("matplotlib")
    axes = new_figure(4, 3).subplots()
    every_second = RunResult(
        Arm("a row"), 1, [{"round": 2, "accuracy": 0.5}, {"round": 3}, {"round": 4, "accuracy": 0.1}], Path()
    )
    over_rounds(axes, ("accuracy", "accuracy %", True), {"a row": [run(0, [0.9, 0.9]), every_second]}, ("a row",))
    [mean] = [line for line in axes.lines if line.get_label() == "a row"]
    assert list(mean.get_xdata()) == [1, 2, 4]
    assert list(mean.get_ydata()) == pytest.approx([90, 70, 50])
