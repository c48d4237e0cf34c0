"""The base of local rules: how a joined client trains, what it sends, and what it remembers.

A rule that belongs to an algorithm stands in that algorithm's file, as its ``LocalRule``, and shares its settings.
Nothing here loads torch or Flower: reading an algorithm's settings must not take seconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from fedappeal.core.plugins import Plugin
from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.training import LocalTrainingSettings

if TYPE_CHECKING:
    import torch
    from flwr.app import ArrayRecord, ConfigRecord
    from numpy.typing import NDArray
    from torch import Tensor, nn


@dataclass(frozen=True)
class StoredRecord:
    """A record in a client's memory: scalars by name, and arrays by name."""

    values: Mapping[str, Scalar]
    arrays: Arrays = field(default_factory=dict)

    @cached_property
    def as_flowers(self) -> "tuple[ConfigRecord, ArrayRecord]":
        """The record as Flower's records, which must not be changed.

        Many simulated clients may remember one thing.
        """
        from flwr.app import Array, ArrayRecord, ConfigRecord

        arrays = {k: Array(np.asarray(a, order="C")) for k, a in self.arrays.items()}
        return ConfigRecord(dict(self.values)), ArrayRecord(arrays)


class Store(Protocol):
    """A client's memory of records by name.

    Attributes:
        durable: whether records outlive the process.
    """

    durable: bool

    def read(self, name: str) -> StoredRecord | None:
        """Return the record of that name, or None."""

    def write(self, name: str, record: StoredRecord) -> None:
        """Replace the named record atomically."""


def remember_round(job: "TrainingJob", kind: str, before: Arrays, after: Arrays) -> None:
    """Store arrays from before and after a round that is joined, so that it can be repeated.

    Both are stored, or neither. ``kind``: what they are.
    """
    arrays = {f"before/{key}": array for key, array in before.items()}
    arrays |= {f"after/{key}": array for key, array in after.items()}
    job.store.write(f"{kind}-{job.run_key}", StoredRecord({"round": job.server_round}, arrays))


def recall_before(store: Store, kind: str, run_key: str, server_round: int) -> Arrays:
    """Return a run's arrays stored by `remember_round`, as before a round; empty if none are."""
    if (record := store.read(f"{kind}-{run_key}")) is None:
        return {}
    moment = "after/" if int(record.values["round"]) < server_round else "before/"
    return {key.removeprefix(moment): array for key, array in record.arrays.items() if key.startswith(moment)}


class LocalProblem(Protocol):
    """The minibatches of one local training, and the loss on them."""

    @property
    def settings(self) -> LocalTrainingSettings:
        """The local training's settings."""

    def minibatches(self) -> "Iterator[Tensor]":
        """Yield the indices of one minibatch after another, on the device of the inputs."""

    def loss_of(self, model: "nn.Module", minibatch: "Tensor") -> "Tensor":
        """Return a model's mean loss on a minibatch of the given indices.

        In the precision of the settings.

        Raises:
            LimitReached: where the time for training is over.
        """

    def gradient_of(self, model: "nn.Module", minibatch: "Tensor") -> "tuple[list[Tensor], list[int]]":
        """Return that loss's gradient by the trained parameters, and the places of those that it does not use.

        In the model's order; zeros at those places. Of several clients this is faster than `loss_of` and autograd.
        """

    def proximal_step(
        self, model: "nn.Module", minibatch: "Tensor", centre: "Sequence[Tensor]", strength: float, rate: float
    ) -> None:
        """Take one step down that loss plus ``strength / 2 |w - centre|^2``, in place.

        Args:
            model: w; parameters that the loss does not use stay.
            minibatch: its indices.
            centre: one tensor a trained parameter, in the model's order.
            strength: factor of the pull.
            rate: learning rate.
        """


class TrainingJob(Protocol):
    """One joined TRAIN, as a local rule sees it.

    Attributes:
        arrays: the model that was sent, by name.
        server_round: counted from 1.
        run_key: which run.
        training: how much to train, with which step.
        told: what the server told about the strategy, by key.
        measured: what the client measured of the model that was sent.
        seed: the run's seed.
        client_id: stable id of the client.
        examples: number of the client's training examples.
        store: the client's memory, which lasts from round to round.
        device: where the client trains.
        model: a model of the task, for its structure: its values do not last.
    """

    arrays: "Arrays"
    server_round: int
    run_key: str
    training: LocalTrainingSettings
    told: Mapping[str, Scalar]
    measured: Measured
    seed: int
    client_id: str
    examples: int
    store: "Store"
    device: "torch.device"
    model: "nn.Module"

    @property
    def trainable(self) -> list[str]:
        """Names of the trainable parameters that travel, in the model's order."""

    def received(self, name: str) -> "Arrays":
        """Return a further model-shaped ArrayRecord of the message, by the model's names.

        Raises:
            ValueError: if there is none.
        """

    def train(self, rule: "LocalRule", start: "Arrays | None" = None) -> "Arrays":
        """Return the local model that a rule trains, starting from given arrays.

        Without ``start``, or with empty arrays, training starts from the model that was sent.
        """

    def gradient(self, arrays: "Arrays", batch: "NDArray[np.int64] | None") -> "Arrays":
        """Return the gradient of a model's mean training loss over some examples.

        ``batch``: rows of the training data; None: all of them.
        """

    def pack(self, arrays: "Arrays") -> "ArrayRecord":
        """Return model-shaped arrays as a record in the sent model's form."""


@dataclass(frozen=True)
class BatchedTerms:
    """The terms that a rule adds to each gradient of a batch of clients.

    Attributes:
        add: called with (name, target, before, active, sign) for each parameter of all clients: adds ``sign`` times
            the term to ``target``, of the first ``active`` clients; ``before`` is the parameter before the step.
        needs_before: whether ``add`` reads ``before``, which costs a copy of all parameters a step.
    """

    add: Callable[[str, "Tensor", "Tensor", int, float], None]
    needs_before: bool = False


def stack_tensors(tensors: "Sequence[Sequence[Tensor]]", names: Iterable[str]) -> "dict[str, Tensor]":
    """Return the clients' tensors of each parameter as one, by name, shape ``(clients, *shape)``.

    Args:
        tensors: of each client, one a trainable parameter; of clients without any: nothing.
        names: of the parameters, in their order.
    """
    import torch

    return {name: torch.stack(list(same)) for name, same in zip(names, zip(*tensors, strict=True), strict=False)}


class LocalRule(Plugin):
    """Base of local rules: derive from it, and write `train` or `reply`."""

    section: ClassVar[str] = ""
    """Name under which the rule's settings stand, where that is not its own."""
    knows_momentum: bool = True
    """Whether the rule applies the run's momentum."""
    knows_weight_decay: bool = True
    """Whether the rule applies the run's weight decay."""
    sends_model: ClassVar[bool] = True
    """Whether a reply is one locally trained model, so that clipping and noise can go around the training."""
    sends_update: ClassVar[bool] = False
    """Whether what is sent is an update (a gradient), not a model."""
    keeps_personal: ClassVar[bool] = True
    """Whether clients may train arrays that they do not send, where a part of the model travels."""
    batched: ClassVar[bool] = False
    """Whether clients can train in batches: `train` is SGD with `batched_terms`, or it `stacks`.

    Else they train one by one. Not inherited by a class that writes its own `train` and nothing of the batched form.
    """
    stacks: ClassVar[bool] = False
    """Whether `train` can be given the parameters of several clients with a leading axis.

    It must treat each of their elements alone, read a loss by its gradient alone, and remember nothing.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "train" in cls.__dict__ and not {"batched", "batched_terms"} & cls.__dict__.keys():
            cls.batched = False
        if "train" in cls.__dict__ and "stacks" not in cls.__dict__:
            cls.stacks = False

    @classmethod
    def settings_name(cls) -> str:
        """Return the name under which the rule's settings stand."""
        return cls.section or cls.name

    def check(self, training: LocalTrainingSettings) -> None:
        """Check the settings that all rules share.

        Raises:
            ConfigError: for momentum or weight decay, where the rule does not know them.
        """
        for key, value, is_known in (
            ("momentum", training.momentum, self.knows_momentum),
            ("weight-decay", training.weight_decay, self.knows_weight_decay),
        ):
            if value and not is_known:
                raise ConfigError(f"{key} = {value:g} is not allowed with local-rule = '{self.name}': 0")

    def asks_gradients(self) -> bool:
        """Whether the rule asks for gradients at models of its own choice, not for local training."""
        return False

    def draws(self) -> int:
        """Return the number of minibatches that one local step takes."""
        return 1

    def gradients(self, steps: int) -> int:
        """Return the number of gradients in a training of so many local steps.

        An owner's limit counts them.
        """
        return steps * self.draws()

    def examples(self, training: LocalTrainingSettings) -> int:
        """Return the number of examples behind one gradient; 0 for all.

        An owner's limit bounds them from below.
        """
        return training.batch_size

    def train(self, model: "nn.Module", problem: LocalProblem) -> None:
        """Train a model in place.

        Args:
            model: holds the global model, in training mode.
            problem: the client's data, minibatches and settings.
        """
        raise TypeError(f"local rule '{self.name}' trains no model")

    def reply(self, job: TrainingJob) -> "dict[str, ArrayRecord]":
        """Return the ArrayRecords of a joined reply: by default the trained model."""
        return {keys.ARRAYS: job.pack(job.train(self))}

    @classmethod
    def batched_terms(cls, rules: "Sequence[LocalRule]", start: "Mapping[str, Tensor]") -> BatchedTerms | None:
        """Return the terms that the rule adds to batched gradients; None if none.

        Args:
            rules: each client's rule, in the places of the clients; their settings are equal.
            start: all clients' parameters before training, by name, shape ``(clients, *shape)``; not copied.
        """
        return None
