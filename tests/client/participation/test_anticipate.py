"""Anticipate: stay or leave, with losses worked out by hand and with a client's own training."""

import math
from dataclasses import dataclass, field

import pytest

from client.learner import Sent
from client.participant import ModelOutlook
from client.participation.policies import Anticipate, stays_at
from fedappeal.core.policy import Past, Situation
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from tests.node import RUN_KEY, Node, run_config


@dataclass
class Told:
    """An outlook of given losses."""

    now: float
    later: float
    asked: list[int] = field(default_factory=list)

    def held_out(self) -> Evaluation:
        return Evaluation(self.now, math.nan)

    def alone(self, rounds: int) -> Evaluation:
        self.asked.append(rounds)
        return Evaluation(self.later, math.nan)


def situation(losses: dict[int, float], outlook: Told, server_round: int) -> Situation:
    past = tuple(Past(number, Decision.JOINED, math.nan, held_out=loss) for number, loss in losses.items())
    return Situation(server_round=server_round, history=past, outlook=outlook)


def test_staying_goes_on_in_a_straight_line() -> None:
    # 0.6 in four rounds is 0.15 a round: two rounds more make 0.9 - 0.3.
    assert stays_at(0.9, 1.5, 4, 2) == pytest.approx(0.6)
    assert stays_at(0.9, 0.8, 1, 3) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("alone", "margin", "expected"),
    [
        (0.59, 0.0, Decision.LEFT),
        (0.61, 0.0, Decision.JOINED),
        (0.55, 0.1, Decision.JOINED),
        (0.49, 0.1, Decision.LEFT),
        (math.nan, 0.0, Decision.JOINED),
    ],
)
def test_it_leaves_where_training_alone_promises_more(alone: float, margin: float, expected: Decision) -> None:
    policy = Anticipate(Anticipate.Settings(horizon=2, window=3, margin=margin))
    outlook = Told(0.9, alone)
    # Asked in rounds 1, 2, 4 and 5, now in 6: the third last is 2, four rounds ago. Staying: 0.6.
    assert policy.decide(situation({1: 9.0, 2: 1.5, 4: 1.2, 5: 1.0}, outlook, 6)) is expected
    assert outlook.asked == [2]


def test_a_client_without_a_past_joins_and_trains_nothing_extra() -> None:
    policy = Anticipate(Anticipate.Settings(horizon=2, window=3))
    outlook = Told(0.9, 0.0)
    assert policy.decide(situation({1: 1.5, 2: 1.5}, outlook, 3)) is Decision.JOINED
    assert policy.decide(Situation()) is Decision.JOINED
    assert outlook.asked == []
    assert policy.decide(situation({1: math.nan, 2: 1.5, 3: 1.2}, outlook, 4)) is Decision.JOINED


def test_a_client_measures_its_outlook() -> None:
    config = run_config(
        strategy="fedavg", requirement="fixed", local_steps=4, learning_rate=0.05, participation="anticipate",
        anticipate__horizon=3, anticipate__window=2,
    )  # fmt: skip
    node = Node(config)
    # The same model again and again: staying brings nothing, and training alone does.
    decisions = [node.metrics("train", server_round=number)[keys.DECISION] for number in (1, 2, 3, 4)]
    assert decisions == [1, 1, -1, -1]
    participant = node.participants.of(node.context)
    past = participant.memory(RUN_KEY).past(100)
    now = node.metrics("evaluate", split=keys.TEST_SPLIT)[keys.LOSS]
    assert [each.held_out for each in past] == pytest.approx([now] * 3)
    alone = node.metrics("evaluate", split=keys.TEST_SPLIT, tuning_steps=12)[keys.LOSS]
    outlook = ModelOutlook(participant, node.initial, Sent("w0"))
    assert outlook.alone(3).loss == pytest.approx(alone)
    assert alone < now
