"""What a strategy holds between rounds: all of it is in its state, and nothing of an open round."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord

from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError
from strategies import FedAvg, Strategy
from strategies.rounds.exchange.replies import read_train
from strategies.rounds.round import KEEP_MODEL, Round, RoundRecord
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


def held(strategy: Strategy, *but: str) -> dict[str, object]:
    """All that a strategy holds in its attributes."""
    return {key: plain(value) for key, value in vars(strategy).items() if key not in but}


@every_strategy
def test_an_open_round_is_not_in_the_strategy(name: str) -> None:
    strategy, grid = MADE[name](), crowd()
    strategy.members.enrol_bare(grid.get_node_ids())
    order = strategy.order(1)  # sorts the members once
    before = held(strategy)
    round = Round(model(0.25), strategy.members, RoundRecord(1))
    strategy.begin(round)
    for member in strategy.survey(round, order):
        said = MetricRecord({keys.NUM_EXAMPLES: 3, keys.LOSS: 0.5, "accuracy": 0.0})
        strategy.surveyed(round, member, said)
    messages = [message for _, message in strategy.train_messages(round, order, told(), 60.0)]  # calls `wave`
    assert held(strategy) == before
    joined = 0
    for reply in grid.send_and_receive(messages):
        if reply.has_content() and reply.content.metric_records[keys.METRICS][keys.DECISION] == Decision.JOINED:
            strategy.add(round, checked(strategy, reply))
            joined += 1
    assert joined == 3
    assert held(strategy) == before
    assert strategy.finish(round) is not KEEP_MODEL


def checked(strategy: Strategy, message: Message) -> Any:
    member = strategy.members.of_node(message.metadata.src_node_id)
    assert member is not None
    return read_train(member, message, strategy.reply_records)


@every_strategy
def test_what_a_strategy_carries_is_in_its_state(name: str) -> None:
    """Another one that is given the state holds the same, but for who is online and what the latest round was."""
    first, grid, arrays = MADE[name](), crowd(), model(0.25)
    for number in (1, 2):
        updated, _ = one_round(first, grid, number, arrays)
        arrays = arrays if updated is None else updated
    second = MADE[name]()
    if name in CARRIES:
        assert held(second, "members", "record") != held(first, "members", "record")
    second.restore(first.state())
    assert held(second, "members", "record") == held(first, "members", "record")
    assert second.members.left == first.members.left == {"111"}
    assert plain(dict(second.state())) == plain(dict(first.state()))


CARRIES = ("fedalign", "scaffold", "mwfed")
"""Strategies with a state of their own."""


class Keeps(FedAvg):
    """A strategy whose author keeps the model."""

    def finish(self, round: Round) -> Any:
        return KEEP_MODEL


def test_a_model_stays_by_the_authors_decision_only_where_the_author_wrote_it() -> None:
    for kind, decided in ((FedAvg, False), (Keeps, True)):
        strategy = kind()
        round = Round(model(0.25), strategy.members, RoundRecord(1))
        assert strategy._next_model(round) is None
        assert round.record.kept is decided


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
        strategy._next_model(Round(model(0.25), strategy.members, RoundRecord(1)))
