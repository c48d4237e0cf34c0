"""What fedappeal.flower.handed_out reads of a header; what nodes are handed is in test_held_polls."""

import pytest

from fedappeal.flower.fleet import HOLD_HEADER, LONGEST_HOLD
from fedappeal.flower.handed_out import asked_to_hold


@pytest.mark.parametrize("said", ["", "soon", "nan", "-1", "0"])
def test_a_header_that_says_no_time_holds_nothing(said: str) -> None:
    assert asked_to_hold([("a", "b"), (HOLD_HEADER, said)]) == 0.0


def test_a_header_is_bounded() -> None:
    assert asked_to_hold([(HOLD_HEADER, "inf")]) == LONGEST_HOLD
    assert asked_to_hold([(HOLD_HEADER, "1.5")]) == 1.5
    assert asked_to_hold(None) == 0.0
