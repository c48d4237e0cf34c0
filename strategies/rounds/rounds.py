"""The rounds of a run: whom they ask, what these are told, what is kept between two.

They are run in two ways: `strategies.rounds.loop.Loop` runs them all, and Flower's own four methods of a strategy
(``configure_train`` and so on) work with any `Grid` that only knows node ids.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from fedappeal.core.algorithm import personal_of, rule_name
from fedappeal.protocol import keys
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.rounds import AUTO, default_mandatory_rounds
from strategies.rounds.algorithm import Algorithm, carried_by, refuse_batch_norm
from strategies.rounds.asking import Asking
from strategies.rounds.exchange.exchange import Addressed
from strategies.rounds.exchange.members import Member, Members, Probation, sampling_order
from strategies.rounds.exchange.messages import evaluate_messages, train_messages
from strategies.rounds.flower_keywords import averaged_metrics, numbers_of
from strategies.rounds.intake import Intake
from strategies.rounds.round import Round, RoundRecord, Setup, packed_state, under_name, unpacked_state
from strategies.rounds.shared import RATE, check_schedule, learning_rate_share
from strategies.rounds.sums.influence import FEWEST, Bounds, Direction, Medians
from strategies.rounds.sums.last_good import DIVERGED, Divergence, LastGood
from strategies.rounds.sums.weighted_sum import HeldModels

log = logging.getLogger("fedappeal")

_LOOP = "volunteers"
"""Name of what the rounds themselves carry, in a checkpoint."""
_INFLUENCE = "influence"
"""Name of the medians that bound clients' influence, in the same place."""
_RATE_COLUMN = "learning_rate"
"""Column of the history: the learning rate of a round, where it is not the same in all."""


def _direction_of(record: str) -> str:
    """Return the name of a record's common direction, in a checkpoint."""
    return "common-direction" if record == keys.ARRAYS else f"common-direction-{record}"


class Rounds:
    """The rounds of a run.

    Attributes:
        algorithm: what decides.
        setup: the run's settings and task.
        members: the clients of the run.
        record: what happened in the latest round.
        finished: why the run is over before its last round; empty while it is not.
        pool_empty: whether the last round had no joiner.
        asking: evidence for asking clients not to opt out.
        divergence: clients whose latest reply was not finite.
        medians: of the clients' weights and updates, where influence is bounded.
        directions: the common direction of each record of their replies, in the same case.
        last_good: the model to which the run goes back.
        open_round: takes the replies of the round that Flower's ``configure_train`` has opened; None: there is none.
    """

    def __init__(self, algorithm: Algorithm, setup: Setup | None = None) -> None:
        """Hold an algorithm; without a setup, as all defaults say."""
        self.algorithm = algorithm
        self.setup = setup or Setup()
        self.members = Members()
        self.record = RoundRecord(0)
        self.finished = ""
        self.pool_empty = False
        self.asking = Asking()
        self.divergence = Divergence()
        self.medians = Medians()
        self.directions = {record: Direction() for record in (keys.ARRAYS, *algorithm.reply_records)}
        self.last_good = LastGood(algorithm)
        self.open_round: Intake | None = None

    def summary(self) -> None:
        """Log the settings that differ between runs."""
        shared, name = self.setup.shared, type(self.algorithm).__name__
        line = "%s: clients-per-round %s, round-timeout %g s, seed %d"
        log.info(line, name, shared.clients_per_round or "all", shared.round_timeout, shared.seed)

    # -- what is carried from round to round ---------------------------------------------------------

    def state(self) -> RecordDict:
        """Return all that is carried from round to round, for a checkpoint."""
        loop = {"gone": sorted(self.members.left), "pool-empty": int(self.pool_empty), "finished": self.finished}
        loop |= self.asking.state() | self.members.unusable.state()
        loop |= self.divergence.state() | self.last_good.state()
        of_rounds = {_LOOP: loop, _INFLUENCE: self.medians.state()}
        of_rounds |= {_direction_of(record): dict(one.vectors) for record, one in self.directions.items()}
        if reserved := of_rounds.keys() & (carried := carried_by(self.algorithm)).keys():
            raise ConfigError(
                f"strategy {self.algorithm.name} carries '{min(reserved)}', which is the rounds' own: choose another "
                "name"
            )
        state = packed_state({**of_rounds, **carried})
        state.update(self.last_good.records())
        return state

    def restore(self, state: RecordDict) -> None:
        """Take up what `state` returned."""
        carried = unpacked_state(state)
        loop = carried.pop(_LOOP)
        self.last_good.restore(carried, loop)
        self.members.left = set(loop["gone"])
        self.pool_empty, self.finished = bool(loop["pool-empty"]), str(loop["finished"])
        self.divergence.restore(loop)
        self.asking = Asking.restored(loop)
        self.members.unusable = Probation.restored(loop)
        self.medians.restore(carried.pop(_INFLUENCE, {}))
        for record, direction in self.directions.items():
            direction.vectors = carried.pop(_direction_of(record), {})
        self.algorithm.take_up(carried)

    # -- one round -----------------------------------------------------------------------------------

    def new_round(self, number: int, model: ArrayRecord) -> Round:
        """Return round ``number``, counted from 1, from the global model; it has not begun."""
        setup = self.setup
        self.record = RoundRecord(number, mandatory=self._is_mandatory(number))
        lr_share = learning_rate_share(setup.shared, number, setup.num_rounds)
        return Round(model, self.members, self.record, lr_share=lr_share, **vars(setup))

    def begin(self, round: Round) -> Intake:
        """Begin a round; return what takes its replies."""
        algorithm, shared, model = self.algorithm, round.shared, round.model
        round.most = shared.clients_per_round or round.flower.number_training(len(self.members.available()))
        if algorithm.refuses_batch_norm:  # of a packed model the names say nothing: `check_model` saw its layers
            refuse_batch_norm(algorithm.name, list(model))
        if shared.influence == "bounded" and len(self.members.of_role(keys.SEEN)) >= FEWEST:  # two: no measure
            start = None if algorithm.LocalRule is not None and algorithm.LocalRule.sends_update else model
            limits = shared.influence_weight, shared.influence_norm, not algorithm.needs_everybody
            round.bounds = Bounds(self.medians, self.directions, model, start, *limits)
        if shared.aggregation != "mean":
            round.sum = HeldModels(model, 0.5 if shared.aggregation == "median" else shared.trim_share)
        algorithm.begin(round)
        return Intake(round, algorithm, self.divergence)

    def order(self, round: Round) -> list[Member]:
        """Return the clients of the pool in the order in which a round asks them."""
        available = {member.client_id: member for member in self.members.available()}
        # All are drawn and the pool's are asked: a client's turn does not depend on the rest of the pool.
        ordered = sampling_order(round.shared.seed, round.number, list(available))
        if type(self.algorithm).pool is Algorithm.pool:
            return [available[client] for client in ordered]
        pool = {member.client_id: member for member in self.algorithm.pool(round)}
        return [pool[client] for client in ordered if client in pool]

    def has_pool(self, round: Round) -> bool:
        """Whether `order` would return any client, which takes longer to ask."""
        available = self.members.available()
        if type(self.algorithm).pool is Algorithm.pool:
            return bool(available)
        ids = {member.client_id for member in available}
        return any(member.client_id in ids for member in self.algorithm.pool(round))

    def _is_mandatory(self, number: int) -> bool:
        """Whether clients are asked not to opt out of a round."""
        shared, rounds = self.setup.shared, self.setup.num_rounds
        first, after_empty = shared.mandatory_rounds, self.pool_empty and shared.on_empty_round == "ask-all"
        if first == AUTO:
            asks = self.asking.asks(number, rounds) or (after_empty and self.asking.may_ask(rounds))
            self.asking.asked += asks
            return asks
        return after_empty or number <= (default_mandatory_rounds(rounds) if first is None else int(first))

    def hear(self, answers: Sequence[tuple[Member, Mapping[str, Any]]]) -> None:
        """Take in what the seen clients that have not left say of a model."""
        gone = self.members.left
        seen = [answer for member, answer in answers if member.role == keys.SEEN and member.client_id not in gone]
        self.asking.note_answers(seen, len(self.members.population()), len(gone))

    def told(self) -> dict[str, Scalar]:
        """Return what every message says of the algorithm: its name; its settings where only messages bring them."""
        return {keys.STRATEGY: self.algorithm.name} if self.setup.configured else self.told_once()

    def told_once(self) -> dict[str, Scalar]:
        """Return name and settings of the algorithm, by which the roll call checks what clients know of it."""
        name, settings = self.algorithm.name, self.algorithm.settings.as_config().items()
        untold = self.algorithm.untold
        values = {key: value for key, value in settings if isinstance(value, Scalar) and key not in untold}
        return {keys.STRATEGY: name, **under_name(name, values)}

    def settings_of(self, round: Round, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the run's training settings with the round's learning rate, which is recorded.

        Raises:
            ConfigError: where there is no learning rate for a schedule to scale.
        """
        check_schedule(round.shared, config)
        if round.shared.constant_learning_rate:
            return config
        round.metrics[_RATE_COLUMN] = rate = config[RATE] * round.lr_share
        return {**config, RATE: rate}

    def train_messages(
        self, round: Round, members: Sequence[Member], config: Mapping[str, Any], ttl: float
    ) -> list[Addressed]:
        """Return one wave's TRAIN messages; ``config``: `settings_of`, ``ttl``: seconds."""
        rule = {} if self.setup.configured else {keys.LOCAL_RULE: rule_name(self.algorithm)}
        instructions = self.algorithm.wave(round, members)
        return train_messages(round, members, {**rule, **config, **self.told()}, instructions, ttl)

    def evaluate_messages(
        self, number: int, model: ArrayRecord, config: Mapping[str, Any], ttl: float
    ) -> list[Addressed]:
        """Return the EVALUATE messages to every connected client; ``ttl`` in seconds."""
        unmeasured = set() if self.setup.shared.measure_leavers else self.members.left
        members = [member for member in self.members.online() if member.client_id not in unmeasured]
        if (wanted := self.setup.flower.number_evaluating(len(members))) < len(members):
            order = generator(self.setup.shared.seed, "evaluation", server_round=number).permutation(len(members))
            members = [members[place] for place in sorted(order[:wanted])]
        steps = personal_of(self.algorithm).tuning_steps()
        tuning = {} if steps is None or self.setup.configured else {keys.TUNING_STEPS: steps}
        settings = {keys.SPLIT: keys.TEST_SPLIT, **config, **self.told(), **tuning}
        return evaluate_messages(members, model, {**settings, keys.SERVER_ROUND: number}, ttl, self.setup.flower)

    def note_round(self, intake: Intake) -> None:
        """Take note of a closed round: whether clients joined, what they decided, whether the run is over."""
        record = intake.round.record
        self.pool_empty = intake.alone or not intake.joined
        if not record.mandatory:
            willing, asked = intake.joined + record.count("surplus"), len(record.decisions) - record.count("left")
            self.asking.note_decisions(willing, asked, len(self.members.population()), len(self.members.left))
        self.finished = self.finished or intake.round.end
        # All clients are listed only where it matters: of a large federation that takes time, in every round.
        remaining = {member.client_id for member in self.members.remaining()} if self.divergence.suspected else set()
        if self.divergence.close_round(record.count("joined"), remaining):
            self.finished = self.finished or DIVERGED

    def evaluate_metrics(self, answers: Sequence[tuple[Member, Mapping[str, Any]]]) -> dict[str, Any]:
        """Return what apps told of a model, averaged.

        Empty where clients have the run's configuration.
        """
        flower = self.setup.flower
        told = [] if self.setup.configured else [numbers_of(metrics) for _, metrics in answers]
        return averaged_metrics(told, flower.weighted_by_key, flower.evaluate_metrics_aggr_fn)
