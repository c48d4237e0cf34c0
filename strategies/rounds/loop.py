"""The loop over all rounds of a run: roll call, survey, waves, evaluation, roll-back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedappeal.flower.messages import is_from_superlink
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Allowance
from fedappeal.settings.config import ConfigError
from strategies.rounds.exchange.exchange import NOT_SENT, SURVEY, Addressed, Channel, Exchange
from strategies.rounds.exchange.members import Member, Members, waves
from strategies.rounds.exchange.messages import evaluate_messages
from strategies.rounds.exchange.ownership import Identities, Owners
from strategies.rounds.exchange.replies import NO_ANSWER, read_evaluate
from strategies.rounds.exchange.roll_call import RollCall
from strategies.rounds.reply import Refused, unexpected_error
from strategies.rounds.round import ABSENT, Hooks, Round, RoundRecord
from strategies.rounds.rounds import Rounds
from strategies.rounds.shared import check_schedule
from strategies.rounds.summary import incomplete
from strategies.rounds.sums.last_good import DIVERGED, LOST, ROLL_BACKS, ROLLED_BACK, Divergence


@dataclass
class Loop:
    """Runs the rounds of a run on Flower's Grid.

    Args:
        rounds: what is run.
        grid: Flower's grid.
        initial: w_0; clients warm up their requirement from it.
        num_rounds: number of the last round.
        train_config: the local rule's settings, sent with every TRAIN.
        evaluate_config: sent with every EVALUATE.
        evaluate_fn: evaluates a model on the server, after each round that clients evaluate: given the round and the
            model, it returns numbers for the history, or None.
        hooks: told what happens.
        roll_call_config: what the roll call carries besides w_0.
        arrays: the model to continue from (a resumed run); None: w_0.
        first_round: the first round to run.
        schedule_rounds: the number of rounds from which schedules and shares follow, where a run that began with it
            continues to another one; 0: ``num_rounds``.
        identities: whose client-ids are, where nodes are real; None: known for this run alone.
    """

    rounds: Rounds
    grid: Grid
    initial: ArrayRecord
    num_rounds: int
    train_config: ConfigRecord | None = None
    evaluate_config: ConfigRecord | None = None
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None
    hooks: Hooks | None = None
    roll_call_config: ConfigRecord | None = None
    arrays: ArrayRecord | None = None
    first_round: int = 1
    schedule_rounds: int = 0
    identities: Identities | None = None

    def __post_init__(self) -> None:
        rounds, shared = self.rounds, self.rounds.setup.shared
        rounds.summary()
        rounds.members = Members(rounds.members.left, rounds.members.unusable)
        rounds.setup.num_rounds = self.schedule_rounds or self.num_rounds
        self._training, self._evaluation = self.train_config or ConfigRecord(), self.evaluate_config or ConfigRecord()
        check_schedule(shared, self._training)
        self.model = self.initial if self.arrays is None else self.arrays
        self.result = Result()
        rounds.last_good.begin(self.first_round, self.model, self.initial)
        self._hooks, self._timeout = self.hooks or Hooks(), shared.round_timeout
        self._channel = Channel(self.grid)
        call, told = self.roll_call_config or ConfigRecord(), {}
        if not rounds.setup.configured:
            call = ConfigRecord({**rounds.told_once(), **call})
            told = dict(zip(keys.APP_CONFIGS, (self._training, self._evaluation), strict=True))
        about = self.initial, call, self._hooks, rounds.setup, self.identities or Owners(), told
        self._roll_call = RollCall(self._channel, rounds.members, *about)

    def run(self) -> Result:
        """Run the rounds; return Flower's result: the last model and the metrics by round.

        Raises:
            RollCallError: too few clients came.
        """
        rounds, result = self.rounds, self.result
        if self.first_round <= self.num_rounds and not rounds.finished:  # else there is nothing left to do
            self._roll_call.wait_for_clients()
        for number in range(self.first_round, self.num_rounds + 1):
            if rounds.finished:
                break
            started = self._channel.clock()
            self._hooks.on_round_start(number)
            round = rounds.new_round(number, self.model)
            self._roll_call.update_until(partial(self._can_begin, round), self._timeout)
            updated = self._train(round)
            self.model = round.model if updated is None else updated
            result.train_metrics_clientapp[number] = MetricRecord({**round.record.told, **round.metrics})
            every, last = round.shared.evaluate_every, number == self.num_rounds or bool(rounds.finished)
            if last or (every and number % every == 0):
                self._evaluate(round, last)
            if rounds.last_good.asks_for_initial(round.record):
                answers = self._answers(RoundRecord(number), self.initial, self._evaluation)
                rounds.last_good.note_initial([measured for _, measured in answers])
            self._settle(round.record)
            round.record.seconds = self._channel.clock() - started
            self._hooks.on_round_end(round.record, self.model)
        result.arrays = self.model
        return result

    def _can_begin(self, round: Round) -> bool:
        """Whether there are clients to ask, or none could come back."""
        # An outage must not use up the rounds.
        influence = type(self.rounds.algorithm).influence(self.rounds.algorithm)
        moves = partial(influence.moves_model, round)
        return self.rounds.has_pool(round) or not any(map(moves, self.rounds.members.remaining()))

    # -- training ------------------------------------------------------------------------------------

    def _train(self, round: Round) -> ArrayRecord | None:
        """Have clients train, and return the next global model.

        None where the model stays.
        """
        rounds, channel, algorithm = self.rounds, self._channel, self.rounds.algorithm
        intake, config = rounds.begin(round), rounds.settings_of(round, self._training)
        deadline = channel.clock() + self._timeout
        order = rounds.order(round)
        if algorithm.waits_for_all or all(member.client_id in channel.absent for member in order):
            channel.absent.clear()  # an outage of all clients must not use up the rounds: wait again
        self._survey(round, order, deadline, config)
        wanted = round.wanted(len(order))
        coming = waves(order, max(1, wanted))
        if not (algorithm.asks_on and round.shared.ask_on):
            coming = iter([next(coming, ())])
        # Made when a wave is due: what is told may depend on the replies so far.
        messages = (rounds.train_messages(round, wave, config, deadline - channel.clock()) for wave in coming)
        allowance = Allowance.of_models(round.model, 1 + len(algorithm.reply_records))
        exchange = Exchange(
            channel, round.record, deadline, MessageType.TRAIN, allowance, needs_all=algorithm.waits_for_all
        )
        for member, reason in exchange.run(messages, intake.take, lambda: intake.missing(wanted)):
            round.record.fail(member.client_id, reason, ABSENT)
        model = intake.close()
        rounds.note_round(intake)
        return model

    def _survey(self, round: Round, order: Sequence[Member], deadline: float, config: Mapping[str, Any]) -> None:
        """Have the algorithm's questions answered before any client trains."""
        kind, channel = type(self.rounds.algorithm).survey, self._channel
        survey = None if kind is None else kind(self.rounds.algorithm)
        if survey is None or not (members := survey.asked(round, order)):
            return
        half = (deadline - channel.clock()) / 2  # one silent client must not use up the round
        # Without the algorithm: the model is measured as it is sent, not after an adaptation.
        settings: dict[str, Any] = {**config, keys.SPLIT: keys.TRAIN_SPLIT, keys.SERVER_ROUND: round.number}
        messages = evaluate_messages(members, round.model, settings, half, self.rounds.setup.flower)
        for member, metrics in self._measured(round.record, deadline - half, messages, SURVEY):
            try:
                survey.answered(round, member, metrics)
            except Refused as error:
                round.record.add_failure(member.client_id, f"survey: {error}")
            except ConfigError:
                raise
            except Exception as error:
                round.record.add_failure(member.client_id, f"survey: {unexpected_error(error)}")

    # -- evaluation ----------------------------------------------------------------------------------

    def _evaluate(self, round: Round, last: bool) -> None:
        """Evaluate the model; at the last time, clients keep the model that they prefer."""
        record, number = round.record, round.number
        answers = self._answers(record, self.model, {**self._evaluation, keys.FINAL: int(last)})
        record.measured = {member.client_id: measured for member, measured in answers}
        self.rounds.hear(answers)
        metrics = self.rounds.algorithm.summarise(round, answers)
        record.metrics |= metrics | incomplete(answers, round.metric, round.other_metrics)
        of_apps = self.rounds.evaluate_metrics(answers)
        self.result.evaluate_metrics_clientapp[number] = MetricRecord({**of_apps, **metrics})
        if self.evaluate_fn is not None and (central := self.evaluate_fn(number, self.model)) is not None:
            record.metrics |= {key: float(value) for key, value in central.items()}  # type: ignore[arg-type]
            self.result.evaluate_metrics_serverapp[number] = central

    def _answers(
        self, record: RoundRecord, model: ArrayRecord, config: Mapping[str, Any]
    ) -> list[tuple[Member, Mapping[str, Any]]]:
        """Have the clients evaluate a model; return the answers by client-id."""
        messages = self.rounds.evaluate_messages(record.server_round, model, config, self._timeout)
        until = self._channel.clock() + self._timeout
        answers = self._measured(record, until, messages, MessageType.EVALUATE)
        record.expected, record.evaluated = len(messages), len(answers)
        return sorted(answers, key=lambda answer: answer[0].client_id)

    def _measured(
        self, record: RoundRecord, deadline: float, messages: Sequence[Addressed], kind: str
    ) -> list[tuple[Member, Mapping[str, Any]]]:
        """Send questions, and return the answers that are allowed; record why others are left out.

        Args:
            record: counts bytes, and answers that are left out.
            deadline: on the channel's clock.
            messages: what is asked.
            kind: `SURVEY`, or the message type.
        """
        survey, setup = kind == SURVEY, self.rounds.setup
        purpose = SURVEY if survey else "evaluation"
        answers: list[tuple[Member, Mapping[str, Any]]] = []

        def take(member: Member, message: Message) -> None:
            try:
                answers.append((member, read_evaluate(message, setup.metric, setup.other_metrics)))
            except Refused as error:
                record.add_failure(member.client_id, f"{purpose}: {error}")
                record.unusable += not survey and not is_from_superlink(message)

        for member, reason in Exchange(self._channel, record, deadline, kind).run(iter([messages]), take):
            if survey or reason not in (NO_ANSWER, NOT_SENT):
                record.add_failure(member.client_id, f"{purpose}: {reason}")
        return answers

    def _settle(self, record: RoundRecord) -> None:
        """Go back to the last good model where the round's is useless; see `LastGood`."""
        rounds = self.rounds
        self.model = rounds.last_good.settle(record, self.model, self._hooks)
        if ROLLED_BACK in record.metrics:
            rounds.divergence = Divergence()  # it was the other model's
            rounds.finished = "" if rounds.finished == DIVERGED else rounds.finished
            if rounds.last_good.in_a_row >= ROLL_BACKS:
                rounds.finished = rounds.finished or LOST
