"""Which rounds are mandatory, and which warm up."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.settings.config import RunConfig
from fedappeal.settings.rounds import default_mandatory_rounds, share_of_rounds
from strategies.fedalign.strategy import warmup_rounds


@pytest.mark.parametrize(
    ("rounds", "mandatory"), [(0, 10), (1, 1), (10, 10), (200, 10), (201, 11), (220, 11), (221, 12), (10**6, 50_000)]
)
def test_mandatory_rounds_by_hand(rounds: int, mandatory: int) -> None:
    assert default_mandatory_rounds(rounds) == mandatory


@given(st.integers(1, 10**6))
def test_the_settings_follow_the_same_rule(rounds: int) -> None:
    mandatory = RunConfig(rounds=rounds, mandatory_rounds=-1).resolved_mandatory_rounds
    assert mandatory == default_mandatory_rounds(rounds)
    assert min(10, rounds) <= mandatory <= rounds
    assert mandatory in (rounds, 10) or 0 <= mandatory - Fraction(rounds, 20) < 1


@given(st.integers(0, 100), st.integers(1, 10_000))
def test_a_share_in_per_cent_is_rounded_up_exactly(per_cent: int, rounds: int) -> None:
    assert warmup_rounds(per_cent / 100, rounds) == -(-per_cent * rounds // 100)
    assert share_of_rounds(per_cent / 100, 100) == per_cent
