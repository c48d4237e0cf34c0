"""The last good model, taken up where the model has become useless to clients.

A model can be finite and of no use, such as one of values around 1e30. The clients' losses say so. A client has
answered an evaluation with a usable loss, or without one: by an error, by a reply that is left out, as one with a
number that is not finite is, or by a loss above `LastGood.limit`, which is relative: `WORSE` times the lowest median
loss of this run, and at least w_0's. Silence says nothing, and a reply that reports no loss (``report-loss = false``)
makes no model good. Where at least `ANSWERS` clients have answered, the model is good if at least half of them have a
usable loss, else useless if the answers without one outnumber the others. So one client in three or more
cannot make a model useless, nor can two in six, nor three among many that report no loss.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Set
from statistics import median_low
from typing import TYPE_CHECKING, Any

from fedappeal.protocol import keys
from fedappeal.protocol.packing import array_record
from strategies.rounds.algorithm import Algorithm, carried_by
from strategies.rounds.round import Hooks, RoundRecord, packed_state, unpacked_state

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict


DIVERGED = "the model has diverged: every client that trains from it ends in values that are not finite"
ROUNDS = 3
"""Rounds with such answers: where clients are few, one of them may have been unlucky in its batches."""


class Divergence:
    """Clients whose latest reply held NaN or inf, since the last joiner."""

    def __init__(self) -> None:
        self._rounds = 0
        self._this_round = False
        self._clients: set[str] = set()

    def state(self) -> dict[str, Any]:
        """Return what is carried from round to round: the rounds so far, and the clients."""
        return {"diverging-rounds": self._rounds, "diverging-clients": sorted(self._clients)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self._rounds, self._clients = int(state["diverging-rounds"]), set(state["diverging-clients"])

    @property
    def suspected(self) -> bool:
        """Whether the latest reply of some client held NaN or inf."""
        return bool(self._clients)

    def note(self, client_id: str, finite: bool) -> None:
        """Take note of a client's answer.

        No answer, or an error, says nothing about the model.
        """
        if finite:
            self._clients.discard(client_id)
        else:
            self._clients.add(client_id)
            self._this_round = True

    def close_round(self, joined: int, remaining: Set[str]) -> bool:
        """End a round; return whether the model has diverged.

        That takes such an answer of every client, so that one of them cannot end a run in which others are enrolled.

        Args:
            joined: clients that joined.
            remaining: all clients that have not left.
        """
        self._rounds += self._this_round
        self._this_round = False
        if joined:
            self._rounds, self._clients = 0, set()
        return self._rounds >= ROUNDS and bool(remaining) and self._clients >= remaining


log = logging.getLogger("fedappeal")

ANSWERS = 3
"""Clients that have to answer before their answers say anything of the model."""
WORSE = 100.0
"""A loss is lost above this many times the lowest median of the run."""
DOUBTFUL = 10.0
"""A median loss above which the clients are asked for w_0's too, where no model is known to be good."""
ROLL_BACKS = 3
"""Roll-backs without a good model between them that end the run."""
LOST = f"the model was useless to most clients {ROLL_BACKS} times in a row, each time after going back to a good one"

ROLLED_BACK, ROLLED_BACK_TO = "rolled_back", "rolled_back_to"
"""Columns of the history: a roll-back after the round, and the round whose model is taken up."""

_CURRENT, _INITIAL, _KEPT = "current", "initial", "kept"
_UNKNOWN = -1
_RECORDS = "last-good/"
_MODEL = f"{_RECORDS}model"
_CARRIED = f"{_RECORDS}carried/"


class LastGood:
    """The last good model, with what the algorithm carried at that time.

    Args:
        algorithm: the run's; going back, it takes up what it carried at that time.

    Attributes:
        server_round: the round after which it was the run's model; 0: the initial model.
        in_a_row: roll-backs since the last good evaluation.
        best: lowest median loss of the run's good models; infinite while none is known.
        initial: median loss of w_0; None while it is not known.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.server_round = _UNKNOWN
        self.in_a_row = 0
        self.best = math.inf
        self.initial: float | None = None
        self._model: ArrayRecord | None = None
        self._carried: RecordDict | None = None
        self._where = _CURRENT

    def begin(self, first_round: int, model: "ArrayRecord", initial: "ArrayRecord") -> None:
        """Begin, or continue, a run.

        Args:
            first_round: the next round.
            model: the run's model.
            initial: w_0.
        """
        if self._where == _CURRENT:
            self._keep(first_round - 1 if self.server_round == _UNKNOWN else self.server_round, model)
            self._where = _INITIAL if model is initial else _CURRENT
        elif self._where == _INITIAL:
            self._model = initial

    @property
    def limit(self) -> float:
        """The highest usable loss; infinite while neither a good model's nor w_0's is known."""
        initial = self.initial or 0.0
        best = self.best if math.isfinite(self.best) else initial
        return max(WORSE * best, initial) or math.inf

    def asks_for_initial(self, record: RoundRecord) -> bool:
        """Whether w_0's loss has to be known before a round's evaluation can be judged."""
        losses = _losses(record.measured.values())
        if self.initial is not None or len(losses) < ANSWERS:
            return False
        return median_low(losses) > (WORSE * self.best if math.isfinite(self.best) else DOUBTFUL)

    def note_initial(self, answers: "Iterable[Mapping[str, Any]]") -> None:
        """Take note of what clients measured with w_0."""
        if len(losses := _losses(answers)) >= ANSWERS:
            self.initial = median_low(losses)

    def settle(self, record: RoundRecord, model: "ArrayRecord", hooks: Hooks) -> "ArrayRecord":
        """Return the model with which the run continues after a round: the round's, or the last good one.

        Args:
            record: the round's, with the answers to its evaluation; it notes a roll-back.
            model: the model after the round.
            hooks: told of a roll-back.
        """
        losses = _losses(record.measured.values())
        usable = [loss for loss in losses if loss <= self.limit]
        answered, lost = len(losses) + record.unusable, len(losses) - len(usable) + record.unusable
        if answered >= ANSWERS and 2 * len(usable) >= answered:
            self.in_a_row = 0
            self.best = min(self.best, median_low(losses))
            self._keep(record.server_round, model)
            return model
        if answered < ANSWERS or 2 * lost <= len(record.measured) + record.unusable:
            self._where = _INITIAL if self._where == _INITIAL else _KEPT
            return model
        if self._model is None or self._carried is None:
            return model
        self._algorithm.take_up(unpacked_state(self._carried))
        self.in_a_row += 1
        self._where = _CURRENT
        record.metrics |= {ROLLED_BACK: 1.0, ROLLED_BACK_TO: float(self.server_round)}
        whys = (f" ({client}: {why})" for client, why in record.failures.items() if "evaluation: " in why)
        text = "round %d: %d of %d clients have a usable loss on the new model%s; back to that of round %d"
        log.warning(text, record.server_round, len(usable), answered, next(whys, ""), self.server_round)
        hooks.on_rolled_back(record.server_round, self.server_round, len(usable), answered)
        return self._model

    def _keep(self, server_round: int, model: "ArrayRecord") -> None:
        self.server_round, self._model, self._where = server_round, model, _CURRENT
        self._carried = packed_state(carried_by(self._algorithm))  # a copy: the algorithm may change its own in place

    # -- in a checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the scalars of a checkpoint."""
        losses = {"best-loss": self.best, "initial-loss": self.initial}
        finite = {name: loss for name, loss in losses.items() if loss is not None and math.isfinite(loss)}
        return {"good-round": self.server_round, "good-model": self._where, "rolled-back": self.in_a_row} | finite

    def records(self) -> "dict[str, Any]":
        """Return the records of a checkpoint: the model, where the checkpoint has it not anyway."""
        if self._where != _KEPT or self._model is None or self._carried is None:
            return {}
        return {_MODEL: self._model, **{f"{_CARRIED}{name}": record for name, record in self._carried.items()}}

    def restore(self, carried: dict[str, dict[str, Any]], loop: Mapping[str, Any]) -> None:
        """Take up what `state` and `records` returned; a checkpoint of an earlier version has neither.

        Args:
            carried: what is carried from round to round, by name; the records are taken out of it.
            loop: the scalars.
        """
        kept = {name: carried.pop(name) for name in list(carried) if name.startswith(_RECORDS)}
        self.server_round, self.in_a_row = int(loop.get("good-round", _UNKNOWN)), int(loop.get("rolled-back", 0))
        self._where = str(loop.get("good-model", _CURRENT))
        self.best, self.initial = float(loop.get("best-loss", math.inf)), loop.get("initial-loss")
        if self._where == _INITIAL:
            self._carried = packed_state(carried_by(self._algorithm))  # before its first round
        if self._where == _KEPT:
            self._model = array_record(kept.pop(_MODEL))
            self._carried = packed_state({name.removeprefix(_CARRIED): values for name, values in kept.items()})


def _losses(answers: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the losses that clients report."""
    return [float(measured[keys.LOSS]) for measured in answers if keys.LOSS in measured]
