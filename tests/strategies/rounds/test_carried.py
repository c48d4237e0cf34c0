"""What a strategy holds between rounds: all of it is in its state, and nothing of an open round."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord

from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError
from strategies import FedAvg
from strategies.rounds.exchange.replies import read_train
from strategies.rounds.round import KEEP_MODEL, Round, RoundRecord
from strategies.rounds.rounds import Rounds
from strategies.rounds.strategy import rounds_of
from tests.grid import intake
from tests.quadratics import model
from tests.strategies.made import MADE, crowd, every_strategy, one_round, told


def plain(value: object) -> object:
    """What an object holds, as something that can be compared."""
    if isinstance(value, ArrayRecord):
        return {name: (array.dtype, array.numpy().tolist()) for name, array in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return set(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "__dict__") and not callable(value):
        return {key: plain(each) for key, each in vars(value).items()}
    return value


def held(rounds: Rounds, *but: str) -> dict[str, object]:
    """All that the rounds and their algorithm hold in their attributes."""
    both = {**vars(rounds), "last_good": rounds.last_good.state(), "algorithm": dict(vars(rounds.algorithm))}
    both["algorithm"].pop("the rounds", None)
    return {key: plain(value) for key, value in both.items() if key not in but}


@every_strategy
def test_an_open_round_is_not_in_the_strategy(name: str) -> None:
    strategy, grid = MADE[name](), crowd()
    rounds = Rounds(strategy)
    rounds.members.enrol_bare(grid.get_node_ids())
    round = Round(model(0.25), rounds.members, RoundRecord(1))
    order = rounds.order(round)  # sorts the members once
    before = held(rounds)
    strategy.begin(round)
    if (kind := type(strategy).survey) is not None:
        survey = kind(strategy)
        for member in survey.asked(round, order):
            said = MetricRecord({keys.NUM_EXAMPLES: 3, keys.LOSS: 0.5, "accuracy": 0.0})
            survey.answered(round, member, said)
    messages = [message for _, message in rounds.train_messages(round, order, told(), 60.0)]  # calls `wave`
    assert held(rounds) == before
    joined = 0
    for reply in grid.send_and_receive(messages):
        if reply.has_content() and reply.content.metric_records[keys.METRICS][keys.DECISION] == Decision.JOINED:
            strategy.add(round, checked(rounds, reply))
            joined += 1
    assert joined == 3
    assert held(rounds) == before
    assert strategy.finish(round) is not KEEP_MODEL


def checked(rounds: Rounds, message: Message) -> Any:
    member = rounds.members.of_node(message.metadata.src_node_id)
    assert member is not None
    return read_train(member, message, rounds.algorithm.reply_records)


@every_strategy
def test_what_a_strategy_carries_is_in_its_state(name: str) -> None:
    """Another one that is given the state holds the same, but for who is online and what the latest round was."""
    first, grid, arrays = MADE[name](), crowd(), model(0.25)
    for number in (1, 2):
        updated, _ = one_round(first, grid, number, arrays)
        arrays = arrays if updated is None else updated
    second = MADE[name]()
    if name in CARRIES:
        assert held(rounds_of(second), "members", "record") != held(rounds_of(first), "members", "record")
    rounds_of(second).restore(rounds_of(first).state())
    assert held(rounds_of(second), "members", "record") == held(rounds_of(first), "members", "record")
    assert rounds_of(second).members.left == rounds_of(first).members.left == {"111"}
    assert plain(dict(rounds_of(second).state())) == plain(dict(rounds_of(first).state()))


CARRIES = ("fedalign", "scaffold", "mwfed")
"""Strategies with a state of their own."""


class Keeps(FedAvg):
    """A strategy whose author keeps the model."""

    def finish(self, round: Round) -> Any:
        return KEEP_MODEL


def test_a_model_stays_by_the_authors_decision_only_where_the_author_wrote_it() -> None:
    for kind, decided in ((FedAvg, False), (Keeps, True)):
        strategy = kind()
        begun = intake(strategy, 1, model(0.25))
        assert begun.close() is None
        assert begun.round.record.kept is decided


class Returns(FedAvg):
    """A strategy whose author returns this as the next model."""

    returned: object = None

    def finish(self, round: Round) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, r"strategy returns returned None \(a forgotten return\?\) as the next model"),
        (ArrayRecord(), r"strategy returns returned a model with arrays \[\], not \['flat-float64'\]"),
    ],
)
def test_what_is_no_model_like_the_one_that_was_sent_ends_the_run(returned: object, said: str) -> None:
    strategy = Returns()
    strategy.returned = returned
    with pytest.raises(ConfigError, match=said):
        intake(strategy, 1, model(0.25)).close()


class Replaces(FedAvg):
    """A strategy whose author puts the next model in the place of the one that was sent."""

    def finish(self, round: Round) -> Any:
        round.model = ArrayRecord()
        return round.model


def test_the_next_model_is_compared_with_the_one_that_was_sent_though_an_author_replaces_that() -> None:
    with pytest.raises(ConfigError, match=r"a model with arrays \[\], not \['flat-float64'\]"):
        intake(Replaces(), 1, model(0.25)).close()
