"""The round loop: roll call, waves of TRAIN, EVALUATE, and the hooks, for any volunteers' strategy."""

from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedappeal.protocol import keys
from fedappeal.protocol.packing import content_bytes
from strategies.exchange import FIRST_POLL, LAST_POLL, NO_ANSWER, NOT_SENT, Exchanges, Traffic
from strategies.fold import Refused
from strategies.hooks import Hooks
from strategies.members import Member
from strategies.replies import read_evaluate
from strategies.roll_call import RollCall
from strategies.sampling import waves

if TYPE_CHECKING:
    from strategies.volunteers import VolunteerStrategy


class Loop:
    """One run of one strategy over one grid."""

    def __init__(
        self,
        strategy: "VolunteerStrategy",
        grid: Grid,
        initial: ArrayRecord,
        hooks: Hooks,
        roll_call_config: ConfigRecord,
    ) -> None:
        self.strategy = strategy
        self.hooks = hooks
        self.exchanges = Exchanges(grid)
        self.roll_call = RollCall(
            self.exchanges,
            strategy.members,
            initial,
            roll_call_config,
            hooks,
            strategy.start_timeout,
            strategy.enrolled,
        )

    def run(
        self,
        first_round: int,
        last_round: int,
        arrays: ArrayRecord,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
    ) -> Result:
        """Run the rounds; return Flower's result.

        Raises:
            RollCallError: if too few clients came.
        """
        strategy, result = self.strategy, Result()
        if first_round <= last_round and not strategy.finished:  # else there is nothing left to do
            self.roll_call.wait_for(strategy.min_available_nodes, strategy.start_timeout, strategy.round_timeout)
        for server_round in range(first_round, last_round + 1):
            if strategy.finished:
                break
            started = self.exchanges.clock()
            self.hooks.on_round_start(server_round)
            self._wait_for_somebody(server_round)
            strategy.open_round(server_round, arrays)
            arrays = self._train(arrays, train_config)
            record = strategy.record
            result.train_metrics_clientapp[server_round] = MetricRecord(dict(record.metrics))
            every, last = strategy.evaluate_every, server_round == last_round or bool(strategy.finished)
            if last or (every and server_round % every == 0):
                metrics = self._evaluate(arrays, ConfigRecord({**evaluate_config, keys.FINAL: int(last)}))
                record.metrics |= metrics
                result.evaluate_metrics_clientapp[server_round] = MetricRecord(dict(metrics))
            record.seconds = self.exchanges.clock() - started
            self.hooks.on_round_end(record, arrays)
        result.arrays = arrays
        return result

    def _wait_for_somebody(self, server_round: int) -> None:
        """Enrol arrivals; where nobody is online, wait up to one deadline: an outage must not use up the rounds."""
        strategy, clock, wait = self.strategy, self.exchanges.clock, FIRST_POLL
        deadline = clock() + strategy.round_timeout
        self.roll_call.update()
        while not strategy.order(server_round) and strategy.somebody_may_return() and clock() < deadline:
            self.exchanges.sleep(wait)
            wait = FIRST_POLL if self.roll_call.update() else min(LAST_POLL, wait * 1.5)

    def _train(self, arrays: ArrayRecord, config: ConfigRecord) -> ArrayRecord:
        """Ask wave after wave until enough have joined, time is up, or nobody is left to ask.

        A wave is asked as soon as those who have not answered yet could not make up for what is missing, so while
        they still train. Clients that missed a deadline have as long to answer as the others take.
        """
        strategy, record, traffic = self.strategy, self.strategy.record, Traffic()
        clock = self.exchanges.clock
        deadline = clock() + strategy.round_timeout
        order = strategy.order(record.server_round)
        if strategy.waits_for_all or all(member.client_id in self.exchanges.absent for member in order):
            self.exchanges.absent.clear()  # an outage of everybody must not use up the rounds: wait again
        self._survey(arrays, config, deadline, traffic)
        wanted = strategy.wanted(len(order))
        coming = waves(order, max(1, wanted))
        if not strategy.asks_on:
            coming = iter([next(coming, ())])

        def missing() -> int:
            return wanted - record.count("joined")

        def ask(waiting: int) -> dict[str, Member]:
            """Ask the next waves where all who are waited for would be too few; return who is under way."""
            asked: dict[str, Member] = {}
            while missing() > waiting and clock() < deadline:
                if not (wave := next(coming, ())):
                    break
                pending, unreached = self.exchanges.send(
                    strategy.train_messages(wave, arrays, config, deadline - clock()), traffic
                )
                for member in unreached:
                    strategy.failed(member, NOT_SENT)
                asked |= pending
                if any(member.client_id not in self.exchanges.absent for member in pending.values()):
                    waiting += len(pending)
            return asked

        size = content_bytes(arrays)
        silent = self.exchanges.collect(
            {}, deadline, strategy.take, traffic, more=ask, window=missing, model_bytes=size
        )
        for member in silent:
            strategy.failed(member, NO_ANSWER)
        record.bytes_up += traffic.up
        record.bytes_down += traffic.down
        updated = strategy.close_round()
        return arrays if updated is None else updated

    def _survey(self, arrays: ArrayRecord, config: ConfigRecord, deadline: float, traffic: Traffic) -> None:
        """Have the strategy's questions answered before anybody is asked to train, in half of the time at most."""
        strategy, record = self.strategy, self.strategy.record
        now = self.exchanges.clock()
        until = now + (deadline - now) / 2  # one silent client must not use up the round

        def take(member: Member, message: Message) -> None:
            try:
                strategy.take_survey(member, read_evaluate(message))
            except Refused as error:
                record.failures[member.client_id] = f"survey: {error}"

        if questions := strategy.survey(arrays, config, until - now):
            pending, unreached = self.exchanges.send(questions, traffic)
            silent = self.exchanges.collect(pending, until, take, traffic)
            for member, reason in [(m, NOT_SENT) for m in unreached] + [(m, NO_ANSWER) for m in silent]:
                record.failures[member.client_id] = f"survey: {reason}"

    def _evaluate(self, arrays: ArrayRecord, config: ConfigRecord) -> dict[str, float]:
        """Ask every client how the model serves it; return the averages."""
        strategy, record, traffic = self.strategy, self.strategy.record, Traffic()
        messages = strategy.evaluate_messages(record.server_round, arrays, config, strategy.round_timeout)
        answers: list[tuple[Member, MetricRecord]] = []

        def take(member: Member, message: Message) -> None:
            try:
                answers.append((member, read_evaluate(message)))
            except Refused as error:
                reasons = (record.failures.get(member.client_id), f"evaluation: {error}")
                record.failures[member.client_id] = "; ".join(filter(None, reasons))

        pending, _ = self.exchanges.send(messages, traffic)
        self.exchanges.collect(pending, self.exchanges.clock() + strategy.round_timeout, take, traffic)
        record.expected, record.evaluated = len(messages), len(answers)
        record.bytes_up += traffic.up
        record.bytes_down += traffic.down
        return strategy.measured(sorted(answers, key=lambda answer: answer[0].client_id))
