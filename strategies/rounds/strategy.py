"""The base class of all strategies: an algorithm that Flower accepts as a strategy.

What an author writes is `Algorithm`. Its rounds are a `Rounds` of their own, so that no attribute of an author's can
be one of theirs.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fedappeal.core.algorithm import Claims as Claims
from fedappeal.core.algorithm import StrategySettings as StrategySettings
from fedappeal.settings.config import ConfigError
from strategies.rounds.algorithm import Algorithm, check_influence
from strategies.rounds.exchange.members import Member
from strategies.rounds.flower_keywords import FlowerKeywords
from strategies.rounds.reply import Refused
from strategies.rounds.round import COUNTED, Round, RoundRecord, Setup
from strategies.rounds.shared import SharedSettings

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result

    from strategies.rounds.rounds import Rounds

log = logging.getLogger("fedappeal")

_SHARED, _FLOWER, _ROUNDS = "the shared settings", "the keywords of Flower's FedAvg", "the rounds"
"""What a strategy holds besides an author's attributes, under names that no attribute can have."""


class Strategy(Algorithm):
    """Base of all strategies; see `Algorithm` for what one may override.

    Args:
        settings: the algorithm's own ``Settings``, the `SharedSettings`, and the keywords of Flower's FedAvg
            (`FlowerKeywords`), all by keyword, all optional.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    def __init__(self, **settings: Any) -> None:
        from flwr.serverapp.strategy import Strategy as FlowerStrategy

        # A virtual subclass of Flower's: deriving from it would load Flower where only settings are read.
        FlowerStrategy.register(Strategy)
        given = {key: settings.pop(key) for key in SharedSettings.model_fields if key in settings}
        keywords = {key: settings.pop(key) for key in FlowerKeywords.model_fields if key in settings}
        flower = vars(self)[_FLOWER] = FlowerKeywords.parse(keywords)
        if least := flower.least_clients():
            given = {"min_clients": least, **given}
        shared = vars(self)[_SHARED] = SharedSettings.parse(given)
        flower.check(shared)
        super().__init__(**settings)
        if self.needs_everybody and flower.fraction_train != 1:
            raise ConfigError(
                f"fraction-train = {flower.fraction_train:g} is not allowed with strategy = '{self.name}': every "
                "round needs all clients (1)"
            )
        if self.needs_everybody and shared.clients_per_round:
            raise ConfigError(
                f"clients-per-round = {shared.clients_per_round} is not allowed with strategy = '{self.name}': "
                "every round needs all clients (None)"
            )
        check_influence(type(self), shared.influence, shared.aggregation)
        self.check_shared(shared)

    def summary(self) -> None:
        """Log the settings that differ between runs."""
        rounds_of(self).summary()

    def start(
        self,
        grid: "Grid",
        initial_arrays: "ArrayRecord",
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: "ConfigRecord | None" = None,
        evaluate_config: "ConfigRecord | None" = None,
        evaluate_fn: "Callable[[int, ArrayRecord], MetricRecord | None] | None" = None,
        **more: Any,
    ) -> "Result":
        """Run the federation; see `strategies.rounds.loop.Loop` for the arguments.

        ``timeout`` is the deadline of each exchange in seconds; None: ``round_timeout``.

        Raises:
            ConfigError: the deadline is not more than 0.
            RollCallError: if too few clients came.
        """
        from strategies.rounds.loop import Loop

        rounds, shared, configs = rounds_of(self), shared_of(self), (train_config, evaluate_config)
        if timeout is not None:
            try:
                rounds.setup.shared = SharedSettings.parse({**vars(shared), "round_timeout": timeout})
            except ConfigError as error:
                raise ConfigError(str(error).replace("round-timeout", "timeout", 1)) from None
        try:
            return Loop(rounds, grid, initial_arrays, num_rounds, *configs, evaluate_fn, **more).run()
        finally:
            rounds.setup.shared = shared

    def configure_train(
        self, server_round: int, arrays: "ArrayRecord", config: "ConfigRecord", grid: "Grid"
    ) -> "Iterable[Message]":
        """Open a round and return the messages of its first wave."""
        rounds = rounds_of(self)
        rounds.members.enrol_bare(grid.get_node_ids())
        round = rounds.new_round(server_round, arrays)
        rounds.open_round = rounds.begin(round)
        first = (order := rounds.order(round))[: round.wanted(len(order))]
        settings = rounds.settings_of(round, config)
        return [message for _, message in rounds.train_messages(round, first, settings, round.shared.round_timeout)]

    def aggregate_train(
        self, server_round: int, replies: "Iterable[Message]"
    ) -> "tuple[ArrayRecord | None, MetricRecord | None]":
        """Add up the replies of a round; the model is None where no client joined."""
        from flwr.app import MetricRecord

        rounds = rounds_of(self)
        intake, rounds.open_round = rounds.open_round, None
        if intake is None or intake.round.number != server_round:
            raise ConfigError(f"server-round = {server_round} is not allowed: configure_train did not open it")
        for message in replies:
            intake.take(_sender(rounds, message), message)
        model, round = intake.close(), intake.round
        rounds.note_round(intake)
        numbers = {k: round.record.count(k) for k in COUNTED}
        return model, MetricRecord({**round.record.told, **numbers, **round.metrics})

    def configure_evaluate(
        self, server_round: int, arrays: "ArrayRecord", config: "ConfigRecord", grid: "Grid"
    ) -> "Iterable[Message]":
        """Return the messages that ask every client how the model serves it."""
        rounds = rounds_of(self)
        rounds.members.enrol_bare(grid.get_node_ids())
        timeout = rounds.setup.shared.round_timeout
        return [message for _, message in rounds.evaluate_messages(server_round, arrays, config, timeout)]

    def aggregate_evaluate(self, server_round: int, replies: "Iterable[Message]") -> "MetricRecord | None":
        """Return the unweighted average of what clients measured.

        None where none answered.
        """
        from flwr.app import ArrayRecord, MetricRecord

        from strategies.rounds.exchange.replies import read_evaluate

        rounds, setup, answers = rounds_of(self), rounds_of(self).setup, []
        for message in replies:
            member = _sender(rounds, message)
            try:
                answers.append((member, read_evaluate(message, setup.metric, setup.other_metrics)))
            except Refused as error:
                log.warning("round %d: evaluation of %s left out: %s", server_round, member.client_id, error)
        rounds.hear(answers)
        round = Round(ArrayRecord(), rounds.members, RoundRecord(server_round), **vars(setup))
        if not answers:
            return None
        return MetricRecord({**rounds.evaluate_metrics(answers), **self.summarise(round, answers)})


def _sender(rounds: "Rounds", message: "Message") -> Member:
    """Return the client that a reply comes from."""
    node = message.metadata.src_node_id
    return rounds.members.of_node(node) or Member.bare(node)


def shared_of(strategy: Strategy) -> SharedSettings:
    """Return the shared settings with which a strategy was made."""
    shared: SharedSettings = vars(strategy)[_SHARED]
    return shared


def rounds_of(strategy: Strategy) -> "Rounds":
    """Return the rounds that run where a strategy's own `start` or Flower's methods are called."""
    from strategies.rounds.rounds import Rounds

    held = vars(strategy)
    if _ROUNDS not in held:
        held[_ROUNDS] = Rounds(strategy, Setup(shared=shared_of(strategy), flower=held[_FLOWER]))
    rounds: Rounds = held[_ROUNDS]
    return rounds
