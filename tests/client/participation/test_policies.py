"""How a client decides: MaxFL's opt-out is F_k(w) >= rho_k."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.participation.behaviour import Behaviour
from client.participation.policies import Always, Anticipate, Appeal
from fedappeal.core.policy import Policy, Situation
from fedappeal.core.registry import POLICIES
from fedappeal.core.requirement import UNMEASURED, Evaluation, Requirement
from fedappeal.protocol.keys import Decision
from strategies.adagd.strategy import Defect
from strategies.fedalign.alignment import Match

numbers = st.floats(allow_nan=True)


def situation(loss: float, rho: float, mandatory: bool = False) -> Situation:
    """What a client knows that requires a loss below rho."""
    evaluation = Evaluation(loss, math.nan)
    return Situation(
        evaluation=evaluation, requirement=rho, met=Requirement(rho).met(evaluation), mandatory=mandatory
    )


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
    assert Appeal().decide(situation(loss, requirement)) is decision


@given(numbers, numbers)
def test_every_client_joins_a_mandatory_round_and_none_ever_leaves(loss: float, requirement: float) -> None:
    assert Appeal().decide(situation(loss, requirement, mandatory=True)) is Decision.JOINED
    assert Appeal().decide(situation(loss, requirement)) in (Decision.JOINED, Decision.SAT_OUT)
    for mandatory in (False, True):
        assert Always().decide(situation(loss, requirement, mandatory)) is Decision.JOINED


def test_policies_by_name() -> None:
    kinds = {name: POLICIES.load(name) for name in POLICIES.built_in}
    behaviours = {name for name, kind in kinds.items() if issubclass(kind, Behaviour)}
    assert behaviours == {"inertia", "costly", "rest", "once", "bernoulli", "markov", "diurnal", "trace", "device"}
    kinds = {name: kind for name, kind in kinds.items() if name not in behaviours}
    assert kinds == {
        "always": Always, "appeal": Appeal, "match": Match, "defect": Defect, "anticipate": Anticipate,
    }  # fmt: skip
    assert [name for name, kind in kinds.items() if kind.mandatory] == ["appeal"]
    assert [name for name, kind in kinds.items() if not kind.needs_loss] == ["always", "anticipate"]
    assert [name for name, kind in kinds.items() if kind.can_leave] == ["defect", "anticipate"]
    assert [name for name, kind in kinds.items() if kind.needs_history] == ["anticipate"]


def test_a_policy_that_does_not_decide_is_named() -> None:
    class Silent(Policy):
        """Says nothing."""

    with pytest.raises(TypeError, match="policy 'silent' has no method decide"):
        Silent().decide(Situation())


def test_what_is_not_measured_is_not_a_number() -> None:
    assert Situation().evaluation is UNMEASURED
    assert math.isnan(Situation().loss)
    assert math.isnan(Situation().score)
