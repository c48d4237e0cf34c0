"""Measures of runs whose clients are free to go, by hand."""

from typing import Any

import pytest

from fedappeal.views.comparison.measures import (
    kept,
    megabytes_to,
    rounds_to,
    stayed,
    training_megabytes,
)


def line(number: int, **values: Any) -> dict[str, Any]:
    return {"round": number, "asked": 4, "joined": 2, "left": 0, "bytes_up": 1_000_000, "bytes_down": 0, **values}


def test_clients_that_have_left_count_as_not_joining() -> None:
    lines = [line(1, joined=4), line(2, joined=3, left=1), line(3, asked=3, joined=3)]
    assert kept(4, rounds=2)(lines) == 0.75
    assert stayed(4)(lines) == stayed()(lines) == 0.75
    assert kept(4, rounds=2)([]) is None
    assert stayed()([]) is None


def test_clients_that_the_server_did_not_take_in_have_joined() -> None:
    assert kept(4, rounds=1)([line(1, joined=1, refused=2)]) == 0.75
    assert kept(4, rounds=1)([line(1, joined=1, surplus=1)]) == 0.5


@pytest.mark.parametrize(("target", "higher", "expected"), [(0.5, True, 4.0), (0.4, False, 2.0), (0.9, True, None)])
def test_the_first_round_that_reaches_a_target(target: float, higher: bool, expected: float | None) -> None:
    lines = [line(1), line(2, accuracy=0.4), line(3), line(4, accuracy=0.6)]
    assert rounds_to("accuracy", target, higher)(lines) == expected


def test_megabytes_are_those_of_training_alone() -> None:
    """The second round was evaluated, so that its 9 MB are not its training's: it counts as the first."""
    lines = [line(1), line(2, expected=4, bytes_up=9_000_000, accuracy=0.6), line(3, bytes_up=2_000_000)]
    assert training_megabytes(lines) == [1.0, 1.0, 2.0]
    assert megabytes_to("accuracy", 0.5)(lines) == 2.0
    assert megabytes_to("accuracy", 0.9)(lines) is None
