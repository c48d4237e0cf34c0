"""One round as an object, and the hooks of a run.

A round has its record, the model, what clients are told, and their checked replies.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.keys import DataProblem
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.protocol.packing import Layout, array_record, view
from fedappeal.settings.config import ConfigError, Scalar
from strategies.rounds.exchange.members import Member, Members
from strategies.rounds.flower_keywords import FlowerKeywords
from strategies.rounds.reply import Model as Model
from strategies.rounds.reply import Reply as Reply
from strategies.rounds.reply import claim as claim
from strategies.rounds.reply import log as log
from strategies.rounds.shared import SharedSettings
from strategies.rounds.sums.influence import Bounds
from strategies.rounds.sums.weighted_sum import WeightedSum

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict


class Kept(Enum):
    """Type of `KEEP_MODEL`."""

    MODEL = "the model stays"


KEEP_MODEL: Final = Kept.MODEL
"""Result of `Algorithm.finish` where the round leaves the global model as it is."""

ABSENT = "absent"
"""Decision of a client of which no reply came in time: it rests, is slow, or is out of reach."""
COUNTED = {word: word.replace("-", "_") for word in ("joined", "sat-out", "left", ABSENT, "failed", "surplus")}
"""Columns of a round's line that count decisions, by decision."""

logger = logging.getLogger("fedappeal")


@dataclass
class RoundRecord:
    """Record of one round.

    Attributes:
        server_round: counted from 1.
        decisions: what became of each client that was asked: ``joined``, ``sat-out``, ``left``, ``surplus``
            (joined after enough had), ``refused`` (joined, but the strategy does not use its update),
            ``failed`` or ``absent``.
        failures: for each of the last two, why.
        metrics: numbers for the history (evaluation, and what the strategy adds).
        measured: what each client that answered the evaluation reported, by client-id, then by key.
        evaluated: clients that answered the evaluation; ``expected``: clients that were asked.
        unusable: clients whose answer to the evaluation, an error or a reply, is left out.
        bytes_up: bytes of the replies' contents; ``bytes_down``: of the instructions'.
        seconds: wall time.
        mandatory: whether clients were asked not to opt out.
        kept: whether the strategy itself said that the model stays.
        told: what joined clients' apps told, averaged, where the run has no configuration of ours.
    """

    server_round: int
    decisions: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluated: int = 0
    expected: int = 0
    unusable: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    mandatory: bool = False
    kept: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)

    def count(self, decision: str) -> int:
        """Number of clients with that decision."""
        return sum(d == decision for d in self.decisions.values())

    def fail(self, client_id: str, reason: str, decision: str = "failed") -> None:
        """Count a client whose reply is left out, or did not come (`ABSENT`), and log why."""
        self.decisions[client_id] = decision
        self.failures[client_id] = reason = one_line(reason)  # a client may have written parts of it
        logger.warning("round %d: %s left out: %s", self.server_round, client_id, reason)

    def add_failure(self, client_id: str, reason: str) -> None:
        """Add a reason to those of a client, whatever it decided."""
        self.failures[client_id] = one_line("; ".join(filter(None, (self.failures.get(client_id), reason))))

    def as_line(self) -> Mapping[str, object]:
        """Return the round as one line of the history.

        Raises:
            ConfigError: a strategy's number has the name of one that every round has.
        """
        began: dict[str, object] = {
            "round": self.server_round,
            "asked": len(self.decisions),
            **{column: self.count(decision) for decision, column in COUNTED.items()},
            "mandatory": self.mandatory,
        }
        ended: dict[str, object] = {
            "evaluated": self.evaluated,
            "expected": self.expected,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": round(self.seconds, 4),
        } | ({"failures": self.failures} if self.failures else {})
        if taken := sorted({*began, *ended} & {*self.metrics}):
            raise ConfigError(f"round.metrics['{taken[0]}'] is not allowed: each round has a number of this name")
        return began | self.metrics | ended


class Hooks:
    """Observer of a run; override what you need.

    An exception in a hook ends the run.
    """

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        """A client answered the roll call; ``enrolled`` clients have."""

    def on_refused(self, node_id: int, reason: str) -> None:
        """A node's answer to the roll call does not fit the run."""

    def on_data_refused(self, node_id: int, client_id: str, problem: DataProblem) -> None:
        """A client's own data do not fit the run; by default an ordinary refusal."""
        self.on_refused(node_id, f"client {client_id}: {problem.text}")

    def on_awaits_approval(self, node_id: int, client_id: str) -> None:
        """A client takes no part until its owner approves the run."""

    def on_unavailable(self, node_id: int, times: int, seconds: float, reason: str) -> None:
        """A node was called and is not available.

        Args:
            node_id: the node.
            times: how often it was so, one call after another.
            seconds: until it is called again.
            reason: what the error says.
        """

    def on_open_federation(self) -> None:
        """The run has a node whose key the operator did not register.

        Any process can be such a node.
        """

    def on_waiting(self, enrolled: int, wanted: int, seconds: float, silent: Sequence[int]) -> None:
        """The run has waited for its first clients for a while.

        Args:
            enrolled: clients that have answered the roll call.
            wanted: clients that have to.
            seconds: how long it waits yet.
            silent: nodes that are connected and have not answered.
        """

    def on_round_start(self, server_round: int) -> None:
        """A round begins."""

    def on_round_over(self, record: RoundRecord) -> None:
        """A round is over and not recorded yet; ``record.metrics`` takes further numbers for the history."""

    def on_round_end(self, record: RoundRecord, arrays: "ArrayRecord") -> None:
        """A round is over; ``arrays`` is the new global model."""

    def on_rolled_back(self, server_round: int, to_round: int, finite: int, answered: int) -> None:
        """The model of a round was useless: the run takes up an earlier one.

        Args:
            server_round: the round.
            to_round: the round after which the model was good; 0: the initial model.
            finite: clients that answered the evaluation with a finite loss.
            answered: clients that answered it, an error included.
        """

    def on_checkpoint(self, server_round: int) -> None:
        """The folder holds a checkpoint of this round: the run can continue after it."""


Layers = Mapping[str, NDArray[Any]]
"""A model's parameters and buffers by name."""


@dataclass(frozen=True)
class Instructions:
    """Content of TRAIN messages besides the model and the general settings.

    Attributes:
        all: told to every client, by key.
        each: told to one client alone, by client-id; counts before ``all``.
        records: further ArrayRecords for every client, by name.
    """

    all: Mapping[str, Scalar] = field(default_factory=dict)
    each: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    records: Mapping[str, Model] = field(default_factory=dict)


NOTHING = Instructions()


def under_name(name: str, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a strategy's values by their keys in messages: ``NAME.KEY``."""
    return {f"{name}.{key}": value for key, value in values.items()}


@dataclass(kw_only=True)
class Setup:
    """What all rounds of a run know.

    Attributes:
        shared: the settings that all strategies share.
        num_rounds: rounds with which the run began, for schedules and shares of them; 0: not known.
        metric: the task's primary metric.
        other_metrics: names of the task's further metrics.
        granted_nodes: nodes to which the runtime, which made their clients, grants priority by the strategy's rule.
        layout: names, shapes and dtypes of the model's layers, where the server packs them; None: it does not.
        flower: keywords of Flower's FedAvg.
        configured: whether clients have the run's configuration: messages carry what is the round's own alone.
    """

    shared: SharedSettings = field(default_factory=lambda: SharedSettings.parse({}))
    num_rounds: int = 0
    metric: Metric = ACCURACY
    other_metrics: tuple[str, ...] = ()
    granted_nodes: frozenset[int] = frozenset()
    layout: Layout | None = None
    flower: FlowerKeywords = field(default_factory=FlowerKeywords)
    configured: bool = False


@dataclass
class Round(Setup):
    """One round.

    Attributes:
        model: the global model that is sent.
        members: the clients of the run.
        record: what has happened so far.
        sum: the joined clients' models, each times its weight.
        carry: what the strategy gathers of this round besides.
        end: why the run is over with this round; empty while it is not.
        lr_share: share of the run's learning rate with which its clients train; 1 but for a schedule.
        bounds: on the influence of each client; None: none.
        claimed_weight: sum of the joined clients' weights, as they would be without bounds.
        most: joiners after which others are surplus; 0: none are.
    """

    model: Model
    members: Members
    record: RoundRecord
    carry: Any = None
    end: str = ""
    lr_share: float = 1.0
    bounds: Bounds | None = None
    claimed_weight: float = 0.0
    most: int = 0

    def __post_init__(self) -> None:
        self.sum = WeightedSum(self.model)

    @property
    def number(self) -> int:
        """The number of the round, from 1."""
        return self.record.server_round

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for the history."""
        return self.record.metrics

    def wanted(self, available: int) -> int:
        """Return the number of joiners to look for among the clients that can be asked."""
        return min(self.most or available, available)

    def layers(self, model: Model | None = None) -> Layers:
        """Return a model's layers by name, as read-only views, without a copy.

        Of the model that is sent, where ``model`` is None.

        Raises:
            ValueError: the model has other layers.
        """
        model = self.model if model is None else model
        return {n: view(array) for n, array in model.items()} if self.layout is None else self.layout.unpack(model)

    def model_of(self, layers: Layers) -> Model:
        """Return layers as a model, packed where the one that is sent is.

        Raises:
            ValueError: the layers have other names, shapes or dtypes.
        """
        for name, old in self.layers().items():
            if (new := layers.get(name)) is not None and (new.dtype, new.shape) != (old.dtype, old.shape):
                raise ValueError(
                    f"layer '{name}' of shape {new.shape} and dtype {new.dtype} does not match the run's layout: "
                    f"{old.shape} and {old.dtype}"
                )
        if self.layout is None:
            return Layout.of(self.layers()).named(layers)
        return self.layout.pack(layers) if self.layout.is_packed(self.model) else self.layout.named(layers)


def packed_state(carried: Mapping[str, Mapping[str, Any]]) -> "RecordDict":
    """Return what is carried from round to round, as Flower's records.

    It is named dicts; an empty dict is left out.

    Raises:
        ConfigError: it holds what a checkpoint cannot.
    """
    from flwr.app import ConfigRecord, RecordDict

    state = RecordDict()
    for name, values in carried.items():
        try:
            if not isinstance(values, Mapping):
                raise TypeError
            if values:
                arrays = all(isinstance(value, np.ndarray) for value in values.values())
                state[name] = array_record(values) if arrays else ConfigRecord(dict(values))
        except TypeError:
            raise ConfigError(
                f"carried()[{name!r}] = {one_line(repr(values), 80)} is not allowed: a dict of numbers and texts, or "
                "lists of them; or a dict of NumPy arrays"
            ) from None
    return state


def unpacked_state(state: "RecordDict") -> dict[str, dict[str, Any]]:
    """Return what `packed_state` was given; arrays are read-only."""
    from flwr.app import ArrayRecord

    return {
        name: {key: view(array) for key, array in record.items()} if isinstance(record, ArrayRecord) else dict(record)
        for name, record in state.items()
    }
