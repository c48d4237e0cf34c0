"""How a client decides: MaxFL's opt-out is F_k(w) >= rho_k."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.participation import POLICIES, Situation, always, appeal, defect, match
from fedappeal.protocol.keys import Decision

numbers = st.floats(allow_nan=True)


@pytest.mark.parametrize(
    ("loss", "requirement", "decision"),
    [
        (0.5, 0.6, Decision.JOINED),
        (0.6, 0.6, Decision.SAT_OUT),
        (math.nextafter(0.6, 0), 0.6, Decision.JOINED),
        (0.7, 0.6, Decision.SAT_OUT),
        (math.nan, 0.6, Decision.SAT_OUT),
        (math.inf, 0.6, Decision.SAT_OUT),
    ],
)
def test_a_client_joins_where_the_model_beats_its_requirement(
    loss: float, requirement: float, decision: Decision
) -> None:
    assert appeal(Situation(loss, requirement, mandatory=False)) is decision


@given(numbers, numbers)
def test_everybody_joins_a_mandatory_round_and_nobody_ever_leaves(loss: float, requirement: float) -> None:
    assert appeal(Situation(loss, requirement, mandatory=True)) is Decision.JOINED
    assert appeal(Situation(loss, requirement, mandatory=False)) in (Decision.JOINED, Decision.SAT_OUT)
    for mandatory in (False, True):
        assert always(Situation(loss, requirement, mandatory)) is Decision.JOINED


@pytest.mark.parametrize(
    ("measure", "global_loss", "epsilon", "decision"),
    [
        (1.25, 1.0, 0.25, Decision.JOINED),
        (math.nextafter(1.25, 2), 1.0, 0.25, Decision.SAT_OUT),
        (0.9, 1.0, -0.25, Decision.SAT_OUT),
        (9.0, 1.0, math.inf, Decision.JOINED),
        (9.0, None, 0.25, Decision.JOINED),  # nothing to compare with
        (math.nan, 1.0, 0.25, Decision.SAT_OUT),
    ],
)
def test_a_client_matches_up_to_epsilon_above_f(
    measure: float, global_loss: float | None, epsilon: float, decision: Decision
) -> None:
    told = Situation(0.1, 0.2, mandatory=True, measure=measure, global_loss=global_loss, epsilon=epsilon)
    assert match(told) is decision


def test_policies_by_name() -> None:
    assert {"always": always, "appeal": appeal, "match": match, "defect": defect} == POLICIES
