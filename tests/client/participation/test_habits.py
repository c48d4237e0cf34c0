"""Behaviours that change a policy's decisions, each against decisions worked out by hand."""

import math
from collections.abc import Sequence
from typing import ClassVar

import pytest
from pydantic import Field

from client.participation.behaviour import (
    Behaviour,
    Costly,
    Inertia,
    Mixture,
    Once,
    Rest,
    check_parts,
    compose,
    parts_of,
)
from client.participation.policies import Always, Appeal
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Past, Policy, Situation
from fedappeal.core.requirement import METRIC, Evaluation, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError
from strategies.adagd.strategy import Defect
from tests.node import RUN_KEY, Node, run_config

J, S, L = Decision.JOINED, Decision.SAT_OUT, Decision.LEFT
LETTERS = {"j": J, "s": S, "l": L}


class Scripted(Policy):
    """Does what a text says, a letter a round."""

    class Settings(PluginSettings):
        """The policy's settings."""

        says: str = Field("j", description="j, s or l for each round")

    def decide(self, situation: Situation) -> Decision:
        return LETTERS[self.settings.says[situation.server_round - 1]]


class Counted(Scripted):
    """The same, and counts how often it is asked."""

    asked: ClassVar[list[int]] = []

    def decide(self, situation: Situation) -> Decision:
        self.asked.append(situation.server_round)
        return super().decide(situation)


def played(says: str, *behaviours: Behaviour, rounds: Sequence[int] = (), mandatory: int = 0) -> str:
    """Return the decisions of the rounds, each with the past that was kept; the first rounds are mandatory."""
    policy = compose([Scripted(Scripted.Settings(says=says)), *behaviours])
    past: tuple[Past, ...] = ()
    found = ""
    for number in rounds or range(1, len(says) + 1):
        situation = Situation(server_round=number, history=past, mandatory=number <= mandatory)
        decision = policy.decide(situation)
        wishes = policy.wishes(situation)
        past = (*past, Past(number, decision, math.nan, wishes=wishes, mandatory=situation.mandatory))
        found += next(letter for letter, each in LETTERS.items() if each is decision)
    return found


def inertia(rounds: int, then: str = "obey") -> Inertia:
    return Inertia(Inertia.Settings.parse({"rounds": rounds, "then": then}))


def rest(rounds: int) -> Rest:
    return Rest(Rest.Settings.parse({"rounds": rounds}))


@pytest.mark.parametrize(
    ("says", "rounds", "then", "expected"),
    [
        ("jsssjssj", 3, "obey", "jjjsjjjj"),
        ("jssssjss", 3, "obey", "jjjssjjj"),
        ("jllll", 2, "obey", "jjlll"),
        ("slsls", 3, "obey", "jjsls"),
        ("jsssj", 3, "leave", "jjjlj"),
        ("sjsjs", 1, "obey", "sjsjs"),
        ("ssjss", 3, "leave", "jjjjj"),
    ],
)
def test_inertia_joins_until_its_patience_is_over(says: str, rounds: int, then: str, expected: str) -> None:
    assert played(says, inertia(rounds, then)) == expected


@pytest.mark.parametrize(
    ("says", "rounds", "expected"),
    [
        ("jsjjjj", 3, "jsssjj"),
        ("jljjsj", 2, "jssjss"),
        ("ssssss", 4, "ssssss"),
        ("jsssjj", 1, "jsssjj"),
        ("llllll", 3, "ssssss"),
        ("jsjsjjj", 3, "jsssjjj"),  # what the policy would do while resting starts no further rest
    ],
)
def test_a_rest_lasts_its_rounds_and_is_no_leaving(says: str, rounds: int, expected: str) -> None:
    assert played(says, rest(rounds)) == expected


@pytest.mark.parametrize(
    ("says", "mandatory", "expected"),
    [
        ("jsjlj", 0, "jjjjj"),
        ("sjjlj", 0, "sssss"),
        ("ljjj", 0, "llll"),
        ("jjssj", 2, "jjsss"),  # what is wished while all are asked to join binds it to nothing
        ("ssjss", 2, "ssjjj"),
    ],
)
def test_a_decision_that_is_made_once_stands(says: str, mandatory: int, expected: str) -> None:
    assert played(says, Once(Once.Settings()), mandatory=mandatory) == expected


def test_a_mandatory_round_between_others_is_as_the_policy_says() -> None:
    past = (Past(1, J, math.nan, wishes=(J, J), mandatory=True), Past(2, S, math.nan, wishes=(S, S)))
    policy = compose([Scripted(Scripted.Settings(says="jsjj")), Once(Once.Settings())])
    assert policy.decide(Situation(server_round=3, history=past, mandatory=True)) is J
    assert policy.decide(Situation(server_round=4, history=past)) is S


def test_rounds_in_which_a_client_is_not_asked_pass_too() -> None:
    # Rests in rounds 2 to 5; asked again in 4 and 7.
    assert played("jsjjjjjj", rest(4), rounds=[1, 2, 4, 7]) == "jssj"


def test_behaviours_are_applied_in_their_order() -> None:
    # Two bad rounds pass, the third is the policy's: then three rounds of rest.
    assert played("jlllljjj", inertia(3), rest(3)) == "jjjsssjj"
    # The rest comes first, so that inertia sees only resting, and joins through two rounds of it.
    assert played("jsjjjj", rest(3), inertia(3)) == "jjjsjj"


def test_a_round_that_is_run_again_is_decided_alike() -> None:
    policy = compose([Scripted(Scripted.Settings(says="sss")), inertia(3)])
    past = (Past(1, J, math.nan, wishes=(S, J)), Past(2, J, math.nan, wishes=(S, J)))
    assert [policy.decide(Situation(server_round=3, history=past)) for _ in range(2)] == [S, S]
    assert policy.decide(Situation(server_round=2, history=past[:1])) is J


def test_a_policy_is_asked_once_a_round() -> None:
    Counted.asked.clear()
    policy = compose([Counted(Counted.Settings(says="jj")), rest(2)])
    situation = Situation(server_round=2)
    policy.decide(situation)
    policy.wishes(situation)
    assert Counted.asked == [2]


@pytest.mark.parametrize(
    ("loss", "mandatory", "expected"),
    [
        (0.69, False, J),  # 1 - 0.69 > 0.3
        (0.75, False, S),
        (0.5, False, J),
        (1.2, False, S),
        (1.2, True, J),
        (math.nan, False, S),
    ],
)
def test_joining_has_to_pay(loss: float, mandatory: bool, expected: Decision) -> None:
    evaluation, required = Evaluation(loss, math.nan), Requirement(1.0)
    situation = Situation(
        evaluation=evaluation,
        mandatory=mandatory,
        met=required.met(evaluation),
        advantage=required.advantage(evaluation),
    )
    costly = Costly(Costly.Settings(cost=0.3))
    assert compose([Always(), costly]).decide(situation) is expected
    assert compose([Appeal(), costly]).decide(situation) is expected


def test_a_cost_keeps_no_client_from_leaving() -> None:
    situation = Situation(evaluation=Evaluation(0.1, math.nan), advantage=-1.0)
    assert compose([Defect(), Costly()]).decide(situation) is L


def test_an_advantage_is_in_the_units_of_the_requirement() -> None:
    assert Requirement(1.5).advantage(Evaluation(1.2, 0.3)) == pytest.approx(0.3)
    assert Requirement(0.8, of=METRIC).advantage(Evaluation(1.2, 0.9)) == pytest.approx(0.1)
    error = Metric("error", higher_is_better=False, low=0.0, high=math.inf)
    assert Requirement(0.8, of=METRIC).advantage(Evaluation(1.2, 0.9, metric=error)) == pytest.approx(-0.1)
    assert math.isnan(Requirement(1.5).advantage(Evaluation(math.nan, math.nan)))


def test_what_a_composed_policy_needs() -> None:
    plain = Always()
    assert compose([plain]) is plain
    composed = compose([Always(), rest(2)])
    assert (composed.name, composed.needs_loss, composed.needs_history, composed.mandatory) == (
        "always+rest", False, True, False,
    )  # fmt: skip
    composed = compose([Always(), Costly()])
    assert (composed.needs_loss, composed.needs_history, composed.mandatory) == (True, False, True)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("rest", [Rest]), ("always+appeal", [Always, Appeal]), ("always+rest+rest", [Always, Rest, Rest])],
)
def test_another_order_is_one_line(name: str, kinds: list[type[Policy]]) -> None:
    assert len(parts_of(name)) == len(kinds)
    with pytest.raises(ConfigError, match=r"^participation = '.*' is not allowed: a policy comes first"):
        check_parts(name, kinds)


def test_a_mixture_of_policies_with_behaviours() -> None:
    mixture = Mixture.parse("appeal+rest=0.5,always=0.25, defect+inertia + rest=0.25")
    assert mixture.names == ("appeal+rest", "always", "defect+inertia + rest")
    assert mixture.parts == ("appeal", "rest", "always", "defect", "inertia")


def test_a_client_keeps_what_was_wished() -> None:
    config = run_config(
        strategy="fedavg", requirement="fixed", local_steps=1, participation="defect+inertia+rest",
        defect__leave_below=1e6, inertia__rounds=2, rest__rounds=2,
    )  # fmt: skip
    node = Node(config)
    # Its loss is always low enough to leave: one round of patience, then rests of two rounds, for ever.
    decisions = [node.metrics("train", server_round=number)[keys.DECISION] for number in range(1, 7)]
    assert decisions == [1, 0, 0, 0, 0, 0]
    # A round that is run again after a restart of the server finds the same past.
    assert node.metrics("train", server_round=2)[keys.DECISION] == 0
    past = node.participants.of(node.context).memory(RUN_KEY).past(100)
    assert [each.wishes for each in past] == [(L, J, J), (L, L, S)]


def test_a_client_remembers_which_rounds_were_mandatory() -> None:
    config = run_config(
        strategy="fedavg", requirement="fixed", fixed__loss=1e-9, local_steps=1, participation="appeal+once"
    )
    node = Node(config)
    decisions = [
        node.metrics("train", server_round=number, mandatory=int(number in (1, 3)))[keys.DECISION]
        for number in range(1, 5)
    ]
    assert decisions == [1, 0, 1, 0]
    past = node.participants.of(node.context).memory(RUN_KEY).past(100)
    assert [each.mandatory for each in past] == [True, False, True, False]


def test_an_unknown_behaviour_is_found_before_a_run() -> None:
    from server.build import check_settings

    with pytest.raises(ConfigError, match="participation = 'nap' is not allowed: always, appeal"):
        check_settings(run_config(participation="appeal+nap"))
    with pytest.raises(ConfigError, match="participation = 'rest' is not allowed: a policy comes first"):
        check_settings(run_config(participation="rest"))
    with pytest.raises(ConfigError, match=r"rest\.rounds = 0"):
        check_settings(run_config(participation="appeal+rest", rest__rounds=0))
    assert check_settings(run_config(participation="always+costly")).knows_mandatory
    assert not check_settings(run_config(participation="always+rest")).knows_mandatory
