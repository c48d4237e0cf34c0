"""A measured curve against a bound: the numbers of a run by hand, and the picture."""

from pathlib import Path

import pytest

from fedappeal.reproductions import bounds, load_experiment
from fedappeal.studies.experiment import Arm, Experiment, Results, RunResult
from fedappeal.views.comparison.measures import save
from tests.studies.small import holds

ARM = Arm("row")


def test_a_run_by_hand() -> None:
    line = bounds.comparison([1, 2], [0.1, 0.02], [10.0, 0.2], lost=3.0)
    assert line["room"] == pytest.approx(1.0)  # 100 and 10 times
    assert (line["first"], line["end"], line["bound-end"], line["lost"]) == (0.1, 0.02, 0.2, 3.0)


def test_a_bound_holds_everywhere_or_not_at_all() -> None:
    claim = next(claim for claim in load_experiment("adagd-theorem1").claims if "at most 4 epsilon" in claim.text)
    for measured, expected in (([0.1, 0.2], True), ([0.3, 0.01], False)):
        line = bounds.comparison([1, 2], measured, [0.2, 0.2])
        assert holds(claim, lambda arm, key, line=line: line[key]) == expected


def test_the_picture(tmp_path: Path) -> None:
    experiment = Experiment("x", "x", "x", (ARM,))
    runs = tuple(
        RunResult(ARM, n, [bounds.comparison([10, 20, 40], [3, 2, 1], [9, 8, 7])], tmp_path) for n in range(2)
    )
    save(bounds.drawing("rounds T", "loss")(Results(experiment, runs)), tmp_path / "curve")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "rounds T" in (tmp_path / "curve.svg").read_text()
