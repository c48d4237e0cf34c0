"""Differences from FedAvg and the sentences about them, against numbers by hand."""

import math

import pytest

from fedappeal.studies.bench.conclusions import chance, compared, conclusions, tally
from fedappeal.studies.bench.design import Cell
from tests.studies.bench.made import made, with_kept

KEPT = {"fedavg": [40.0, 50.0, 60.0], "maxfl": [61.0, 70.0, 79.0], "adagd": [45.0, 40.0, 66.0]}


def test_differences_are_paired_by_seed() -> None:
    """Of 21, 20, 19: mean 20, standard deviation 1, t of two degrees of freedom 4.303."""
    found = {each.cell.strategy: each for each in compared(made(KEPT), ("kept",))}
    interval = found["maxfl"].difference.interval
    assert interval.mean == 20.0
    assert interval.half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert str(found["maxfl"]) == "+20 (+18 to +22)"
    assert [found[name].difference.verdict for name in ("maxfl", "adagd")] == ["better", "level"]


def test_a_sentence_names_the_strategies_that_are_ahead() -> None:
    (sentence, *_) = conclusions(made(KEPT))
    assert sentence == (
        "**appeal**, clients that join at the end: FedAvg itself 50 ± 10 on digits; "
        "ahead of FedAvg: maxfl (+20 on digits); behind: none; 1 of 2 differences are level."
    )


def test_a_sentence_names_the_tasks() -> None:
    both = made({**KEPT, "mifa": [20.0, 30.0, 40.0]}, tasks=("digits", "fmnist"))
    (sentence, *_) = conclusions(with_kept(both, Cell("fmnist", "appeal", "maxfl"), (50.0, 50.0, 50.0)))
    assert "ahead of FedAvg: maxfl (+20 on digits); behind: mifa (-20 on digits, -20 on fmnist); 3 of 6" in sentence


def test_chance_is_stated() -> None:
    """Of two strategies by three headlines only the clients kept differ at all."""
    assert chance(made(KEPT)).startswith("2 differences that are not exactly 0 were judged one by one at 95 %")
    assert "about 0 of them" in chance(made(KEPT))


def test_a_tally_counts_where_each_is_ahead_level_and_behind() -> None:
    table = tally(made({**KEPT, "mifa": [20.0, 30.0, 40.0]}, tasks=("digits", "fmnist")))
    assert table.header == ("", "clients that join at the end", "GM-Appeal", "the metric")
    assert table.rows == (
        ("maxfl", "2 / 0 / 0", "0 / 2 / 0", "0 / 2 / 0"),
        ("adagd", "0 / 2 / 0", "0 / 2 / 0", "0 / 2 / 0"),
        ("mifa", "0 / 0 / 2", "0 / 2 / 0", "0 / 2 / 0"),
    )


def test_a_task_without_a_number_is_no_task_on_which_a_strategy_is_ahead() -> None:
    """On fmnist one seed diverged: the other two would speak for it."""
    both = made(KEPT, tasks=("digits", "fmnist"))
    partly = with_kept(both, Cell("fmnist", "appeal", "maxfl"), (None, 70.0, 79.0))
    (sentence, *_) = conclusions(partly)
    assert "ahead of FedAvg: maxfl (+20 on digits); behind: none; 2 of 3 differences" in sentence
    found = [(each.cell.task, each.cell.strategy) for each in compared(partly, ("kept",))]
    assert ("fmnist", "maxfl") not in found
    assert ("digits", "maxfl") in found
