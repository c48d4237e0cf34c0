"""The steps of one round: who is asked, what they are told, what becomes of each reply, the next model."""

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedappeal.core.places import place_of
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.rounds import AUTO, default_mandatory_rounds
from strategies.rounds.algorithm import Algorithm, refuse_batch_norm
from strategies.rounds.asking import Asking
from strategies.rounds.exchange.members import Member, Members, sampling_order
from strategies.rounds.refusal import NoAnswer, NotFinite, Refused, unexpected
from strategies.rounds.round import ABSENT, KEEP_MODEL, Reply, Round, RoundRecord, log
from strategies.rounds.shared import learning_rate_share
from strategies.rounds.sums.influence import FEWEST, Bounds, Direction, Medians, Sent
from strategies.rounds.sums.last_good import DIVERGED, Divergence
from strategies.rounds.sums.weighted_sum import HeldModels, finite

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, MetricRecord

logger = logging.getLogger("fedappeal")
_AT_FAULT = 3
"""Clients for which a strategy fails, all that would have joined, before its error ends the run; all where fewer."""


class RoundSteps(Algorithm):
    """An algorithm whose single rounds can be run.

    Attributes:
        members: the clients of the run.
        record: what happened in the latest round.
        finished: why the run is over before its last round; empty while it is not.
        pool_empty: whether the last round had no joiner.
        asking: what is known of whether to ask clients not to opt out.
        layout: names, shapes and dtypes of the model's layers, where the server packs them; None: it does not.
    """

    layout: Layout | None = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.members = Members()
        self.record = RoundRecord(0)
        self.finished = ""
        self.pool_empty = False
        self._divergence = Divergence()
        self._medians, self._direction = Medians(), Direction()
        self.asking = Asking()

    # -- what clients are asked ----------------------------------------------------------------------

    def order(self, number: int) -> list[Member]:
        """Return the clients of the pool in the order in which a round asks them."""
        pool = {member.client_id: member for member in self.pool(number, self.members)}
        available = [member.client_id for member in self.members.available()]
        # All are drawn and the pool's are asked: a client's turn does not depend on the rest of the pool.
        return [pool[client] for client in sampling_order(self.shared.seed, number, available) if client in pool]

    def wanted(self, available: int) -> int:
        """Number of joiners a round is looking for, where ``available`` clients can be asked."""
        return min(self.shared.clients_per_round or available, available)

    def open_round(self, number: int, arrays: "ArrayRecord") -> Round:
        """Begin round ``number``, counted from 1, from the global model."""
        if self.refuses_batch_norm:  # of a packed model the names say nothing: `check_model` saw its layers
            refuse_batch_norm(self.name, list(arrays))
        self.record = RoundRecord(number, mandatory=self._is_mandatory(number))
        lr_share = learning_rate_share(self.shared, number, self.num_rounds)
        round = Round(arrays, self.members, self.record, lr_share=lr_share, layout=self.layout)
        shared = self.shared
        if shared.influence == "bounded" and len(self.members.of_role(keys.SEEN)) >= FEWEST:  # two: no measure
            start = None if self.LocalRule is not None and self.LocalRule.sends_update else arrays
            limits = shared.influence_weight, shared.influence_norm, not self.needs_everybody
            round.bounds = Bounds(self._medians, self._direction, arrays, start, *limits)
        if shared.aggregation != "mean":
            round.sum = HeldModels(arrays, 0.5 if shared.aggregation == "median" else shared.trim_share)
        self.begin(round)
        return round

    def _is_mandatory(self, number: int) -> bool:
        """Whether clients are asked not to opt out of a round."""
        first, after_empty = self.shared.mandatory_rounds, self.pool_empty and self.shared.on_empty_round == "ask-all"
        if first == AUTO:
            asks = self.asking.asks(number, self.num_rounds) or (after_empty and self.asking.may_ask(self.num_rounds))
            self.asking.asked += asks
            return asks
        return after_empty or number <= (default_mandatory_rounds(self.num_rounds) if first is None else int(first))

    def _hear(self, answers: "Sequence[tuple[Member, MetricRecord]]") -> None:
        """Take in what the seen clients that have not left say of a model."""
        gone = self.members.left
        seen = [answer for member, answer in answers if member.role == keys.SEEN and member.client_id not in gone]
        self.asking.note_answers(seen, len(self.members.population()), len(gone))

    def under_name(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return values by their keys in messages: ``NAME.KEY``."""
        return {f"{self.name}.{key}": value for key, value in values.items()}

    def told(self) -> dict[str, Scalar]:
        """Return what every message says of the strategy: name and settings."""
        settings = self.settings.as_config().items()
        values = {key: value for key, value in settings if isinstance(value, Scalar) and key not in self.untold}
        return {keys.STRATEGY: self.name, **self.under_name(values)}

    def train_messages(
        self, round: Round, members: Sequence[Member], config: Mapping[str, Any], ttl: float
    ) -> "list[tuple[Member, Message]]":
        """Return one wave's TRAIN messages; ``config``: general settings, ``ttl``: seconds."""
        from strategies.rounds.exchange.replies import train_messages

        settings = {
            keys.LOCAL_RULE: self.rule_name,
            **config,
            **self.told(),
            keys.SERVER_ROUND: round.number,
            keys.MANDATORY: int(round.record.mandatory),
        }
        return train_messages(members, round.model, settings, self.wave(round, members), ttl)

    def evaluate_messages(
        self, number: int, arrays: "ArrayRecord", config: Mapping[str, Any], ttl: float
    ) -> "list[tuple[Member, Message]]":
        """Return the EVALUATE messages to every connected client; ``ttl`` in seconds."""
        from strategies.rounds.exchange.replies import evaluate_messages

        unmeasured = set() if self.shared.measure_leavers else self.members.left
        members = [member for member in self.members.online() if member.client_id not in unmeasured]
        settings = {keys.SPLIT: keys.TEST_SPLIT, **config, **self.told(), **self.evaluation_settings()}
        return evaluate_messages(members, arrays, {**settings, keys.SERVER_ROUND: number}, ttl)

    # -- what comes back -----------------------------------------------------------------------------

    def take(self, round: Round, member: Member, message: "Message") -> None:
        """Check one reply and add it, or count why not."""
        from strategies.rounds.exchange.replies import read_train

        record = round.record
        try:
            reply = read_train(member, message, self.reply_records)
            decision = reply.decision.label
            if reply.decision is Decision.LEFT:
                self.members.left.add(member.client_id)
            elif reply.decision is Decision.JOINED:
                most = self.shared.clients_per_round
                if most and record.count("joined") >= most:
                    decision = "surplus"
                else:
                    self._accept(round, reply)
            record.decisions[member.client_id] = decision
            self._divergence.note(member.client_id, finite=True)
        except ConfigError:
            raise
        except Exception as error:  # whatever one client sent, it must not end the run
            self._leave_out(round, member, error)

    def _accept(self, round: Round, reply: Reply) -> None:
        """Add a joined reply, or the replies that need not wait any more where influence is bounded."""
        if round.bounds is None:
            self.add(round, reply)
            return
        round.sum.check(reply.arrays)
        unit = round.lr_share * self.update_unit(round, reply)
        if (log_weight := self.log_weight(round, reply)) is None:
            log_weight = log(self._checked_weight(reply))
        for sent in round.bounds.admit(reply, log_weight, unit):
            if sent.reply is reply:
                self.add(round, round.bounds.bounded(sent))
            else:
                self._add_held(round, round.bounds, sent)

    def _finish_bounded(self, round: Round, bounds: Bounds) -> "ArrayRecord | None":
        """Return the next model; None where clients that were cut are nearly alone: then all are asked next.

        In that case the strategy takes up what it carried before the round: it remembers only models that count.
        """
        round.metrics["bounded"] = float(len(bounds.cut | bounds.against))
        # A strategy that refuses joiners does so when it finishes: only then it is known who is left.
        suspected = self.may_refuse or self._cut_alone(round, bounds)
        carried = copy.deepcopy({name: v for name, v in self.carried().items() if v}) if suspected else {}
        arrays = self._next_model(round)
        if suspected and self._cut_alone(round, bounds):
            self.take_up(carried)
            self.pool_empty = self.pool_empty or arrays is not None
            arrays = None
        bounds.close()
        return arrays

    def _next_model(self, round: Round) -> "ArrayRecord | None":
        """Return what `finish` returns; None where the model stays.

        Raises:
            ConfigError: it returned something else than a model like the one that was sent.
        """
        from flwr.app import ArrayRecord

        model: object = self.finish(round)
        stays = model is KEEP_MODEL or model is round.model
        # The methods that all inherit keep the model where nothing has a weight, which no author decided.
        inherited = type(self).finish is Algorithm.finish and type(self).update is Algorithm.update
        round.record.kept = stays and not inherited
        if model is KEEP_MODEL:
            return None
        if isinstance(model, ArrayRecord) and (wrong := _differs(model, round.model)) is None:
            return model
        text = f"a model with {wrong}" if isinstance(model, ArrayRecord) else repr(model)[:80]
        forgotten = " (a forgotten return?)" if model is None else ""
        raise ConfigError(
            f"strategy {self.name} returned {text}{forgotten} as the next model: one like round.model, or KEEP_MODEL "
            f"where it stays{place_of(type(self), 'update', 'finish')}"
        )

    def _cut_alone(self, round: Round, bounds: Bounds) -> bool:
        """Whether clients that were cut are nearly alone."""
        record = round.record
        joined = [client for client, decision in record.decisions.items() if decision == "joined"]
        return bounds.leaves_alone(joined, record.count("sat-out") + record.count("refused"))

    def _add_held(self, round: Round, bounds: Bounds, sent: Sent) -> None:
        """Add a reply that has waited: what is wrong with it concerns its own client."""
        try:
            self.add(round, bounds.bounded(sent))
        except ConfigError:
            raise
        except Exception as error:
            self._leave_out(round, sent.reply.member, error)

    def _leave_out(self, round: Round, member: Member, error: Exception) -> None:
        if isinstance(error, Refused):
            decision = ABSENT if isinstance(error, NoAnswer) else "failed"
            round.record.fail(member.client_id, str(error), decision)
            if isinstance(error, NotFinite):
                self._divergence.note(member.client_id, finite=False)
            return
        logger.debug("round %d: reply of %s", round.number, member.client_id, exc_info=error)
        round.record.fail(member.client_id, unexpected(error))
        # A traceback keeps the reply's model in memory: that of the first one says enough.
        round.faults[member.client_id] = error.with_traceback(None) if round.faults else error

    def close_round(self, round: Round) -> "ArrayRecord | None":
        """End the round; return the next global model, None where it stays."""
        record = round.record
        if round.bounds is not None:
            for sent in round.bounds.release():
                self._add_held(round, round.bounds, sent)
        self.pool_empty = record.count("joined") == 0
        if round.faults and self.pool_empty and len(round.faults) >= min(_AT_FAULT, len(record.decisions)):
            raise next(iter(round.faults.values()))  # the strategy is at fault: no single client ends a run of others
        if not record.mandatory:
            willing = record.count("joined") + record.count("surplus")
            staying, left = len(self.members.population()), len(self.members.left)
            self.asking.note_decisions(willing, len(record.decisions) - record.count("left"), staying, left)
        arrays = self._next_model(round) if round.bounds is None else self._finish_bounded(round, round.bounds)
        self.finished = self.finished or round.end
        # All clients are listed only where it matters: of a large federation that takes time, in every round.
        remaining = {member.client_id for member in self.members.remaining()} if self._divergence.suspected else set()
        if self._divergence.close_round(record.count("joined"), remaining):
            self.finished = self.finished or DIVERGED
        if arrays is not None and not finite(arrays):
            # Finite claims can still be absurd: the federation must not be lost to one of them.
            logger.warning("round %d: the new model is not finite; the old one stays", round.number)
            round.metrics["not_finite"] = 1.0
            return None
        return arrays


def _differs(model: "ArrayRecord", sent: "ArrayRecord") -> str | None:
    """Return by what a model differs in form from the one that was sent; None: by nothing."""
    if set(model) != set(sent):
        return f"arrays {sorted(model)}, not {sorted(sent)}"
    for name, array in model.items():
        new, old = ((a.dtype, tuple(a.shape)) for a in (array, sent[name]))
        if new != old:
            return f"array '{name}' of dtype {new[0]} and shape {new[1]}, not {old[0]} and {old[1]}"
    return None
