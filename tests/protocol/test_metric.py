"""A task's metric: which way is better, its error, its worst clients."""

import math
import re

import pytest
from flwr.app import MetricRecord

from fedappeal.core.requirement import METRIC, Evaluation, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.record.columns import COLUMNS
from fedappeal.settings.config import ConfigError
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import RoundRecord
from strategies.rounds.summary import summarise

ERROR = Metric("abs-error", higher_is_better=False, low=0.0, high=math.inf)
SCORE = Metric("r2", low=-math.inf, high=1.0)


def test_errors_by_hand() -> None:
    assert ACCURACY.error(0.75) == 0.25
    assert ACCURACY.error_bounds == (0.0, 1.0)
    assert (ERROR.error(3.0), ERROR.error_bounds) == (3.0, (0.0, math.inf))
    assert (SCORE.error(-1.0), SCORE.error_bounds) == (2.0, (0.0, math.inf))
    assert Metric("gain", low=-math.inf, high=math.inf).error(2.0) == -2.0


def test_a_larger_error_is_a_worse_value_up_to_the_worst() -> None:
    assert ACCURACY.from_error(0.25) == 0.75
    assert ACCURACY.from_error(7.0) == 0.0
    assert ERROR.from_error(7.0) == 7.0
    assert Evaluation(0.5, 2.0, ERROR).inflated(3.0) == Evaluation(1.5, 6.0, ERROR)


@pytest.mark.parametrize(
    ("metric", "value", "met"),
    [
        (ACCURACY, 0.5, True),
        (ACCURACY, 0.4, False),
        (ERROR, 0.5, True),
        (ERROR, 0.6, False),
        (ERROR, math.nan, False),
    ],
)
def test_a_requirement_of_the_metric_knows_the_direction(metric: Metric, value: float, met: bool) -> None:
    assert Requirement(0.5, of=METRIC).met(Evaluation(1.0, value, metric)) is met


def test_the_worst_tenth_is_where_an_error_is_largest() -> None:
    told = [
        (Member(str(k), k), MetricRecord({"abs-error": float(k), "preferred-abs-error": 1.0, "bias": 2.0 * k}))
        for k in range(11)
    ]
    assert summarise(told, ERROR, ["bias"]) == {
        "abs_error": 5.0,
        "preferred_abs_error": 1.0,
        "bias": 10.0,
        "worst_decile_abs_error": 9.5,
        "lowest_abs_error": 0.0,
        "highest_abs_error": 10.0,
    }


@pytest.mark.parametrize(
    "name", ["", "Loss", "loss", *keys.APPEALS, "a b", "x_y", "joined", "bytes-up", "client", "requirement"]
)
def test_a_name_that_is_taken_or_no_key_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="metric = "):
        Metric(name)


def test_no_metric_has_the_name_of_another_column() -> None:
    others = {column.key for column in COLUMNS if not re.search("[{/]", column.key)}
    for name in (column.replace("_", "-") for column in others | RoundRecord(1).as_line().keys()):
        with pytest.raises(ConfigError, match=f"metric = '{name}' is not allowed"):
            Metric(name)


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"low = 1\.0 is not below"):
        Metric("x", low=1.0, high=0.0)
