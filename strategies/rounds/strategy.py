"""The base class of all strategies: an algorithm, and the rounds around it.

Roll call, waves, waiting, evaluation, state and hooks are here once; `RoundSteps` has what one round consists of. It
works in two ways: ``start`` runs the whole loop, and Flower's own four methods (``configure_train`` and so on) work
with any `Grid` that only knows node ids.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fedappeal.core.algorithm import Claims, StrategySettings
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies.rounds.asking import Asking
from strategies.rounds.exchange.members import Member, Members, waves
from strategies.rounds.refusal import Refused, unexpected
from strategies.rounds.round import COUNTED, Hooks, Round, RoundRecord, packed, unpacked
from strategies.rounds.round_steps import RoundSteps
from strategies.rounds.shared import check_schedule, settings_of_round
from strategies.rounds.sums.last_good import DIVERGED, LOST, ROLL_BACKS, ROLLED_BACK, Divergence, LastGood, split

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result

    from strategies.rounds.exchange.exchange import Channel
    from strategies.rounds.exchange.ownership import Identities

__all__ = ["Claims", "Strategy", "StrategySettings"]

log = logging.getLogger("fedappeal")

_LOOP = "volunteers"
"""Name of what the rounds themselves carry, in a checkpoint."""
_INFLUENCE = "influence"
"""Name of the medians that bound clients' influence, in the same place; `_DIRECTION`: of the common direction."""
_DIRECTION = "common-direction"


class Strategy(RoundSteps):
    """Base of all strategies; see `Algorithm` for what one may override.

    Attributes:
        granted_nodes: nodes to which the runtime, which made their clients, grants priority by the
            strategy's own rule.
    """

    def __init__(self, **settings: Any) -> None:
        from flwr.serverapp.strategy import Strategy as FlowerStrategy

        # A virtual subclass of Flower's: deriving from it would load Flower where only settings are read.
        FlowerStrategy.register(Strategy)
        super().__init__(**settings)
        self.granted_nodes: frozenset[int] = frozenset()
        self._last_good = LastGood()
        self._opened: Round | None = None

    # -- what is carried from round to round ---------------------------------------------------------

    def state(self) -> "RecordDict":
        """Return all that is carried from round to round, for a checkpoint."""
        loop = {"gone": sorted(self.members.left), "pool-empty": int(self.pool_empty), "finished": self.finished}
        loop |= self.asking.state()
        loop |= self._divergence.state() | self._last_good.state()
        of_rounds = {_LOOP: loop, _INFLUENCE: self._medians.state(), _DIRECTION: dict(self._direction.vectors)}
        if reserved := of_rounds.keys() & (carried := self.carried()).keys():
            raise ConfigError(
                f"strategy {self.name} carries '{min(reserved)}', which is the rounds' own: choose another name"
            )
        state = packed({**of_rounds, **carried})
        state.update(self._last_good.records())
        return state

    def restore(self, state: "RecordDict") -> None:
        """Take up what `state` returned."""
        state, good = split(state)
        carried = unpacked(state)
        loop = carried.pop(_LOOP)
        self._last_good.restore(loop, good, packed(self.carried()))
        self.members.left = set(loop["gone"])
        self.pool_empty, self.finished = bool(loop["pool-empty"]), str(loop["finished"])
        self._divergence.restore(loop)
        self.asking = Asking.restored(loop)
        self._medians.restore(carried.pop(_INFLUENCE, {}))
        self._direction.vectors = carried.pop(_DIRECTION, {})
        self.take_up(carried)

    # -- Flower's methods ----------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: "ArrayRecord", config: "ConfigRecord", grid: "Grid"
    ) -> "Iterable[Message]":
        """Open a round and return the messages of its first wave."""
        self.members.enrol_bare(grid.get_node_ids())
        round = self._opened = self.open_round(server_round, arrays)
        order = self.order(server_round)
        settings = settings_of_round(self.shared, round, config)
        messages = self.train_messages(round, order[: self.wanted(len(order))], settings, self.shared.round_timeout)
        return [message for _, message in messages]

    def aggregate_train(
        self, server_round: int, replies: "Iterable[Message]"
    ) -> "tuple[ArrayRecord | None, MetricRecord | None]":
        """Add up the replies of a round; the model is None where no client joined."""
        from flwr.app import MetricRecord

        round, self._opened = self._opened, None
        if round is None or round.number != server_round:
            raise ConfigError(f"server-round = {server_round} is not allowed: configure_train did not open it")
        for message in replies:
            self.take(round, self._sender(message), message)
        arrays = self.close_round(round)
        numbers = {k: round.record.count(k) for k in COUNTED}
        return arrays, MetricRecord({**numbers, **round.metrics})

    def configure_evaluate(
        self, server_round: int, arrays: "ArrayRecord", config: "ConfigRecord", grid: "Grid"
    ) -> "Iterable[Message]":
        """Return the messages that ask every client how the model serves it."""
        self.members.enrol_bare(grid.get_node_ids())
        messages = self.evaluate_messages(server_round, arrays, config, self.shared.round_timeout)
        return [message for _, message in messages]

    def aggregate_evaluate(self, server_round: int, replies: "Iterable[Message]") -> "MetricRecord | None":
        """Average what clients measured, unweighted; None where none answered."""
        from flwr.app import MetricRecord

        from strategies.rounds.exchange.replies import read_evaluate

        answers = []
        for message in replies:
            member = self._sender(message)
            try:
                answers.append((member, read_evaluate(message, self.metric)))
            except Refused as error:
                log.warning("round %d: evaluation of %s left out: %s", server_round, member.client_id, error)
        self._hear(answers)
        return MetricRecord(dict(self.summarise(answers))) if answers else None

    def _sender(self, message: "Message") -> Member:
        node = message.metadata.src_node_id
        return self.members.of_node(node) or Member.bare(node)

    # -- the whole run -------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the settings that differ between runs."""
        shared, name = self.shared, type(self).__name__
        line = "%s: clients-per-round %s, round-timeout %g s, seed %d"
        log.info(line, name, shared.clients_per_round or "all", shared.round_timeout, shared.seed)

    def start(
        self,
        grid: "Grid",
        initial_arrays: "ArrayRecord",
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: "ConfigRecord | None" = None,
        evaluate_config: "ConfigRecord | None" = None,
        evaluate_fn: "Callable[[int, ArrayRecord], MetricRecord | None] | None" = None,
        *,
        hooks: Hooks | None = None,
        roll_call_config: "ConfigRecord | None" = None,
        arrays: "ArrayRecord | None" = None,
        first_round: int = 1,
        schedule_rounds: int = 0,
        identities: "Identities | None" = None,
    ) -> "Result":
        """Run the federation.

        Args:
            grid: Flower's grid.
            initial_arrays: w_0; clients warm up their requirement from it.
            num_rounds: number of the last round.
            timeout: not used; ``round_timeout`` is the deadline of each exchange.
            train_config: the local rule's settings, sent with every TRAIN.
            evaluate_config: sent with every EVALUATE.
            evaluate_fn: evaluates a model on the server, after each round that clients evaluate: given the round and
                the model, it returns numbers for the history, or None.
            hooks: told what happens.
            roll_call_config: what the roll call carries besides w_0.
            arrays: the model to continue from (a resumed run); None: ``initial_arrays``.
            first_round: the first round to run.
            schedule_rounds: the number of rounds from which schedules and shares follow, where a run that began with
                it continues to another one; 0: ``num_rounds``.
            identities: whose client-ids are, where nodes are real; None: known for this run alone.

        Returns:
            Flower's result: the last model and the metrics by round.

        Raises:
            RollCallError: if too few clients came.
        """
        from flwr.app import ConfigRecord, MetricRecord
        from flwr.serverapp.strategy import Result

        from strategies.rounds.exchange.exchange import Channel
        from strategies.rounds.exchange.ownership import Owners
        from strategies.rounds.exchange.roll_call import RollCall

        self.summary()
        self.members, self.num_rounds = Members(self.members.left), schedule_rounds or num_rounds
        hooks, shared, result = hooks or Hooks(), self.shared, Result()
        training, evaluation = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        check_schedule(shared, training)
        model = initial_arrays if arrays is None else arrays
        self._last_good.begin(self, first_round, model, initial_arrays)
        channel = Channel(grid)
        call_config, owners = roll_call_config or ConfigRecord(), identities or Owners()
        roll_call = RollCall(channel, self.members, initial_arrays, call_config, hooks, shared, owners)
        if first_round <= num_rounds and not self.finished:  # else there is nothing left to do
            roll_call.wait_for_clients()
        for number in range(first_round, num_rounds + 1):
            if self.finished:
                break
            started = channel.clock()
            hooks.on_round_start(number)
            roll_call.update_until(partial(self._can_begin, number), shared.round_timeout)
            round = self.open_round(number, model)
            updated = self._train(round, channel, settings_of_round(shared, round, training))
            model = round.model if updated is None else updated
            result.train_metrics_clientapp[number] = MetricRecord(dict(round.metrics))
            every, last = shared.evaluate_every, number == num_rounds or bool(self.finished)
            if last or (every and number % every == 0):
                answers = self._evaluated(round.record, channel, model, {**evaluation, keys.FINAL: int(last)})
                round.record.measured = {member.client_id: measured for member, measured in answers}
                self._hear(answers)
                metrics = self.summarise(answers)
                round.record.metrics |= metrics
                result.evaluate_metrics_clientapp[number] = MetricRecord(dict(metrics))
                if evaluate_fn is not None and (central := evaluate_fn(number, model)) is not None:
                    round.record.metrics |= {key: float(value) for key, value in central.items()}  # type: ignore[arg-type]
                    result.evaluate_metrics_serverapp[number] = central
            if self._last_good.asks_for_initial(round.record):
                answers = self._evaluated(RoundRecord(number), channel, initial_arrays, evaluation)
                self._last_good.note_initial([measured for _, measured in answers])
            model = self._settled(round.record, model, hooks)
            round.record.seconds = channel.clock() - started
            hooks.on_round_end(round.record, model)
        result.arrays = model
        return result

    def _evaluated(
        self, record: RoundRecord, channel: "Channel", model: "ArrayRecord", config: Mapping[str, Any]
    ) -> "list[tuple[Member, MetricRecord]]":
        """Have the clients evaluate a model; return the answers by client-id."""
        from strategies.rounds.exchange.replies import evaluation_answers

        messages = self.evaluate_messages(record.server_round, model, config, self.shared.round_timeout)
        until = channel.clock() + self.shared.round_timeout
        return evaluation_answers(record, channel, until, messages, self.metric)

    def _settled(self, record: RoundRecord, model: "ArrayRecord", hooks: Hooks) -> "ArrayRecord":
        """Return the model with which the run continues after a round; see `LastGood`."""
        model = self._last_good.settle(self, record, model, hooks)
        if ROLLED_BACK in record.metrics:
            self._divergence = Divergence()  # it was the other model's
            self.finished = "" if self.finished == DIVERGED else self.finished
            if self._last_good.in_a_row >= ROLL_BACKS:
                self.finished = self.finished or LOST
        return model

    # -- one round of `start` ------------------------------------------------------------------------

    def _can_begin(self, number: int) -> bool:
        """Whether there are clients to ask, or none could come back."""
        # An outage must not use up the rounds.
        return bool(self.order(number)) or not any(map(self.moves_model, self.members.remaining()))

    def _train(self, round: Round, channel: "Channel", config: Mapping[str, Any]) -> "ArrayRecord | None":
        """Have clients train; return the next global model, None where it stays."""
        from strategies.rounds.exchange.replies import train_replies

        deadline = channel.clock() + self.shared.round_timeout
        order = self.order(round.number)
        if self.waits_for_all or all(member.client_id in channel.absent for member in order):
            channel.absent.clear()  # an outage of all clients must not use up the rounds: wait again
        self._survey(round, order, channel, deadline, config)
        wanted = self.wanted(len(order))
        coming = waves(order, max(1, wanted))
        if not (self.asks_on and self.shared.ask_on):
            coming = iter([next(coming, ())])
        # Made when a wave is due: what is told may depend on the replies so far.
        messages = (self.train_messages(round, wave, config, deadline - channel.clock()) for wave in coming)
        records, needs_all = 1 + len(self.reply_records), self.waits_for_all
        for member, message in train_replies(round, channel, deadline, wanted, messages, records, needs_all):
            self.take(round, member, message)
            del message  # its model is not to stay in memory while the next ones are pulled
        return self.close_round(round)

    def _survey(
        self, round: Round, order: Sequence[Member], channel: "Channel", deadline: float, config: Mapping[str, Any]
    ) -> None:
        """Have the strategy's questions answered before any client trains."""
        from strategies.rounds.exchange.replies import evaluate_messages, survey_answers

        if not (members := self.survey(round, order)):
            return
        half = (deadline - channel.clock()) / 2  # one silent client must not use up the round
        # Without the strategy: the model is measured as it is sent, not after an adaptation.
        settings: dict[str, Any] = {**config, keys.SPLIT: keys.TRAIN_SPLIT, keys.SERVER_ROUND: round.number}
        messages = evaluate_messages(members, round.model, settings, half)
        for member, metrics in survey_answers(round.record, channel, deadline - half, messages, self.metric):
            try:
                self.surveyed(round, member, metrics)
            except Refused as error:
                round.record.add_failure(member.client_id, f"survey: {error}")
            except ConfigError:
                raise
            except Exception as error:
                round.record.add_failure(member.client_id, f"survey: {unexpected(error)}")
