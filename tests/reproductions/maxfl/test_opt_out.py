"""Table 1's readings of MaxFL's weights: line 8 by hand, and with which rows they are compared."""

import math

import pytest

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol.keys import Decision
from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.maxfl.line_eight import LineEight
from fedappeal.studies.experiment import Contrast
from strategies.maxfl import APPEAL_WEIGHT
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Reply


@pytest.mark.parametrize(("gap", "weight"), [(0.0, 0.5), (math.log(3), 0.75), (-math.log(3), 0.25), (1000.0, 1.0)])
def test_line_8_weighs_by_the_sigmoid(gap: float, weight: float) -> None:
    strategy = LineEight()
    claims = strategy.report(Measured(Evaluation(2000.0 + gap, math.nan), rho=2000.0, met=False))
    assert claims == {APPEAL_WEIGHT: pytest.approx(weight)}
    assert strategy.weight(Reply(Member("0", 0), Decision.JOINED, 7, claims, None)) == pytest.approx(weight)


def test_readings_of_maxfl_alone_are_compared_with_fedavg_of_the_same_rate() -> None:
    experiment = load_experiment("maxfl-table1")
    settings = {arm.name: {**experiment.settings, **arm.settings} for arm in experiment.arms}
    compared = [c.margin for c in experiment.claims if c.group.startswith(("Line 8", "Epsilon 5"))]
    assert len(compared) == 4 * 4
    for contrast in compared:
        assert isinstance(contrast, Contrast)
        assert isinstance(contrast.other, tuple)
        one, other = settings[contrast.one[0]], settings[contrast.other[0]]
        assert other["strategy"] == "fedavg"
        assert {key for key in one if one[key] != other.get(key)} <= {"strategy", "maxfl.stabilizer"}
