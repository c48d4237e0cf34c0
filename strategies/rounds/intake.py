"""The intake of one round: replies are checked, bounded, refused or added, then combined."""

import copy
import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Message

from fedappeal.core.places import place_of
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError
from strategies.rounds.algorithm import Algorithm, carried_by
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.replies import read_train
from strategies.rounds.flower_keywords import averaged_metrics, numbers_of
from strategies.rounds.reply import NoAnswer, NotFinite, Refused, checked_weight, unexpected_error
from strategies.rounds.round import ABSENT, KEEP_MODEL, Reply, Round, log
from strategies.rounds.sums.influence import Bounds, MeasuredReply
from strategies.rounds.sums.last_good import Divergence
from strategies.rounds.sums.weighted_sum import finite

logger = logging.getLogger("fedappeal")
NO_VOLUNTEER = "its ClientApp is no volunteer, which this strategy needs: fedappeal.clientapp.volunteer makes it one"
_AT_FAULT = 3
"""Clients for which a strategy fails, all that would have joined, before its error ends the run; all where fewer."""


class Intake:
    """Takes the replies of one round, and makes the next model.

    Attributes:
        round: the round.
        told: by client the numbers of each joined one's app, where the run has no configuration of ours.
        joined: clients that joined, before the algorithm refused any; known once the round is closed.
        alone: whether the model stays because clients whose influence was cut are nearly alone.
    """

    def __init__(self, round: Round, algorithm: Algorithm, divergence: Divergence) -> None:
        """Begin.

        Args:
            round: the round, which the algorithm has begun.
            algorithm: adds the replies up.
            divergence: told which replies are finite.
        """
        self.round = round
        self.told: dict[str, Mapping[str, Any]] = {}
        self.joined, self.alone = 0, False
        self._algorithm, self._divergence = algorithm, divergence
        self._influence = type(algorithm).influence(algorithm)
        self._faults: list[Exception] = []
        """Errors that no check foresaw, one for each client whose reply met one."""

    def take(self, member: Member, message: Message) -> None:
        """Check one reply and add it, or count why not."""
        round, record, members = self.round, self.round.record, self.round.members
        try:
            reply = read_train(member, message, self._algorithm.reply_records, round.flower.weighted_by_key)
            if self._algorithm.needs_weight and keys.DECISION not in reply.metrics:
                raise Refused(NO_VOLUNTEER)
            decision = reply.decision.label
            if reply.decision is Decision.LEFT:
                members.left.add(member.client_id)
            elif reply.decision is Decision.JOINED:
                if round.most and record.count("joined") >= round.most:
                    decision = "surplus"
                else:
                    reply = self._influence.updates(round, reply)
                    if round.bounds is None:
                        self._algorithm.add(round, reply)
                    else:
                        self._add_bounded(reply, round.bounds)
                    if not round.configured:
                        self.told[member.client_id] = numbers_of(reply.metrics, reply.claimed)
            record.decisions[member.client_id] = decision
            members.unusable.succeed(member.client_id)
            self._divergence.note(member.client_id, finite=True)
        except ConfigError:
            raise
        except Exception as error:  # whatever one client sent, it must not end the run
            self._leave_out(member, error)

    def _add_bounded(self, reply: Reply, bounds: Bounds) -> None:
        """Take in a reply, and add those that need not wait any more."""
        round = self.round
        round.sum.check(reply.arrays)
        unit = round.lr_share * self._influence.update_unit(round, reply)
        if (log_weight := self._influence.log_weight(round, reply)) is None:
            log_weight = log(checked_weight(self._algorithm.weight(reply)))
        for sent in bounds.admit(reply, log_weight, unit):
            if sent.reply is reply:
                self._algorithm.add(round, bounds.counted_reply(sent))
            else:
                self._add_held(sent, bounds)

    def _add_held(self, sent: MeasuredReply, bounds: Bounds) -> None:
        """Add a reply that has waited: what is wrong with it concerns its own client."""
        try:
            self._algorithm.add(self.round, bounds.counted_reply(sent))
        except ConfigError:
            raise
        except Exception as error:
            self._leave_out(sent.reply.member, error)

    def _leave_out(self, member: Member, error: Exception) -> None:
        record, client = self.round.record, member.client_id
        self.told.pop(client, None)
        if not isinstance(error, NoAnswer):
            self.round.members.unusable.fail(client)
        if isinstance(error, Refused):
            record.fail(client, str(error), ABSENT if isinstance(error, NoAnswer) else "failed")
            if isinstance(error, NotFinite):
                self._divergence.note(client, finite=False)
            return
        logger.debug("round %d: reply of %s", self.round.number, client, exc_info=error)
        record.fail(client, unexpected_error(error))
        # A traceback keeps the reply's model in memory: that of the first one says enough.
        self._faults.append(error.with_traceback(None) if self._faults else error)

    def settle(self) -> None:
        """Add the replies that have waited."""
        bounds = self.round.bounds
        if bounds is not None:
            for sent in bounds.release():
                self._add_held(sent, bounds)

    def missing(self, wanted: int) -> int:
        """Return how many clients are still to join; where none seems to be, what has waited is measured first."""
        left = wanted - self.round.record.count("joined")
        if left <= 0:
            self.settle()
            left = wanted - self.round.record.count("joined")
        return left

    def close(self) -> ArrayRecord | None:
        """Take no further reply, add those that have waited, and return the next global model.

        None where the model stays. Where influence is bounded, it does so too where clients that were cut are nearly
        alone: then all are asked next, and the algorithm takes up what it carried before the round, as it remembers
        only models that count.

        Raises:
            ConfigError: the algorithm returned something else than a model like the one that was sent.
            Exception: the algorithm's own error, where it kept every client from joining.
        """
        self.settle()
        round, record, flower = self.round, self.round.record, self.round.flower
        self.joined = record.count("joined")
        if self._faults and not self.joined and len(self._faults) >= min(_AT_FAULT, len(record.decisions)):
            raise self._faults[0]  # no single client ends a run of others
        numbers = list(self.told.values())
        record.told = averaged_metrics(numbers, flower.weighted_by_key, flower.train_metrics_aggr_fn)
        model = self._finished_model() if round.bounds is None else self._bounded_model(round.bounds)
        if model is not None and not finite(model):
            # Finite claims can still be absurd: the federation must not be lost to one of them.
            logger.warning("round %d: the new model is not finite; the old one stays", round.number)
            round.metrics["not_finite"] = 1.0
            return None
        return model

    def _bounded_model(self, bounds: Bounds) -> ArrayRecord | None:
        """Return the next global model where influence is bounded, finite or not; None where it stays."""
        algorithm = self._algorithm
        # An algorithm that refuses joiners does so when it finishes: only then it is known who is left.
        suspected = algorithm.may_refuse or self._cut_alone(bounds)
        carried = copy.deepcopy({name: v for name, v in carried_by(algorithm).items() if v}) if suspected else {}
        self.round.metrics["bounded"] = float(len(bounds.cut | bounds.against))
        model = self._finished_model()
        if suspected and self._cut_alone(bounds):
            algorithm.take_up(carried)
            self.alone, model = model is not None, None
        bounds.close()
        return model

    def _cut_alone(self, bounds: Bounds) -> bool:
        """Whether clients that were cut are nearly alone."""
        record = self.round.record
        joined = [client for client, decision in record.decisions.items() if decision == "joined"]
        return bounds.leaves_alone(joined, record.count("sat-out") + record.count("refused"))

    def _finished_model(self) -> ArrayRecord | None:
        """Return what the algorithm's `finish` returns, checked against the model that was sent.

        None where the model stays.
        """
        kind, sent = type(self._algorithm), self.round.model
        model: object = self._algorithm.finish(self.round)
        stays = model is KEEP_MODEL or model is sent
        # The methods that all inherit keep the model where nothing has a weight, which no author decided.
        inherited = kind.finish is Algorithm.finish and kind.update is Algorithm.update
        self.round.record.kept = stays and not inherited
        if model is KEEP_MODEL:
            return None
        if isinstance(model, ArrayRecord) and (wrong := _differs(model, sent)) is None:
            return model
        text = f"a model with {wrong}" if isinstance(model, ArrayRecord) else repr(model)[:80]
        forgotten = " (a forgotten return?)" if model is None else ""
        raise ConfigError(
            f"strategy {kind.name} returned {text}{forgotten} as the next model: one like round.model, or KEEP_MODEL "
            f"where it stays{place_of(kind, 'update', 'finish')}"
        )


def _differs(model: ArrayRecord, sent: ArrayRecord) -> str | None:
    """Return how a model differs in form from the one that was sent.

    None where it does not differ.
    """
    if set(model) != set(sent):
        return f"arrays {sorted(model)}, not {sorted(sent)}"
    for name, array in model.items():
        new, old = ((a.dtype, tuple(a.shape)) for a in (array, sent[name]))
        if new != old:
            return f"array '{name}' of dtype {new[0]} and shape {new[1]}, not {old[0]} and {old[1]}"
    return None
