"""The arithmetic of a client, and nothing else: local training and the loss of a model, as requests with a result.

A deployed client does them one after the other. The in-process engine puts another `Arithmetic` in its place, which
does the same for many clients side by side; what is asked for is decided by the same code.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.models import arrays_of, evaluate, load_arrays, mean_gradient
from client.rules import RULES, Noise, seeded_noise
from client.work import LocalWork
from fedappeal.protocol.packing import Arrays
from fedappeal.tasks.task import Split, Task


@dataclass(frozen=True)
class Evaluation:
    """What a client measured of one model.

    Attributes:
        loss: mean loss on the split.
        accuracy: on the split, in [0, 1].
    """

    loss: float
    accuracy: float

    def measure(self, on: str) -> float:
        """Return what FedALIGN compares: the loss, or ``1 - accuracy`` for ``error``."""
        return 1.0 - self.accuracy if on == "error" else self.loss


UNMEASURED = Evaluation(math.nan, math.nan)
"""What is said of a model where nobody needs to know."""


@dataclass(frozen=True, eq=False)
class Training:
    """Local training of one client.

    Attributes:
        task: gives the loss.
        model: holds any values; they may be replaced.
        place: the client's number in its task.
        data: its training examples.
        arrays: the model to start from, by name.
        rule: the local rule, one of `client.rules.RULES`.
        work: its settings.
        batches: indices into ``data``, shape ``(draws, batch size)``.
        correction: see `client.work.LocalRule`.
        seed: the run's seed.
        client_id: whose noise (dropout) it is.
        server_round: counted from 1; 0 outside a round.
        purpose: what the training is for; distinct purposes draw distinct noise.
    """

    task: Task
    model: nn.Module
    place: int
    data: Split
    arrays: Arrays
    rule: str
    work: LocalWork
    batches: NDArray[np.int64]
    correction: Sequence[Tensor]
    seed: int
    client_id: str
    server_round: int
    purpose: str

    @property
    def alike(self) -> object:
        """Equal for what may be trained side by side: all but the clients' own models, data and numbers of steps."""
        work = self.work.model_copy(update={"local_steps": 0, "local_epochs": 0})
        return ("train", id(self.task), self.rule, work, self.seed, self.server_round, self.purpose)


@dataclass(frozen=True, eq=False)
class Measuring:
    """The loss and accuracy of a model on one client's data.

    Attributes:
        task: gives loss and metrics.
        model: holds any values; they may be replaced.
        place: the client's number in its task.
        data: the examples.
        split: which of the client's splits they are.
        arrays: the model to measure, by name.
        shared: content hash of the model where others may be measuring the same one; else empty.
        noise: measures in training mode, with this noise in the model's dropout; None: in evaluation mode.
    """

    task: Task
    model: nn.Module
    place: int
    data: Split
    split: str
    arrays: Arrays
    shared: str
    noise: Noise | None = None

    @property
    def alike(self) -> object:
        """Equal for what may be measured at once: the same model on the same split."""
        return ("evaluate", id(self.task), self.shared, self.split)


@dataclass(frozen=True, eq=False)
class Differentiating:
    """The gradient of a model's mean loss on one client's training examples, in evaluation mode.

    Attributes:
        task: gives the loss.
        model: holds any values; they may be replaced.
        place: the client's number in its task.
        data: its training examples.
        arrays: where the gradient is taken, by name.
        batch: indices into ``data``; None: all of them.
    """

    task: Task
    model: nn.Module
    place: int
    data: Split
    arrays: Arrays
    batch: NDArray[np.int64] | None

    @property
    def alike(self) -> object:
        """Equal for what may be differentiated side by side."""
        return ("gradient", id(self.task))


class Arithmetic:
    """One client's arithmetic at a time: a deployed client's."""

    def train(self, request: Training) -> Arrays:
        """Return the locally trained model by name."""
        load_arrays(request.model, request.arrays)
        request.model.train()
        device = request.data.x.device
        purpose = f"{request.client_id}/{request.purpose}"
        with seeded_noise(request.seed, purpose, request.server_round, device):
            RULES[request.rule](
                request.model,
                lambda logits, y: request.task.loss(logits, y),
                request.data.x,
                request.data.y,
                request.batches,
                request.work,
                request.correction,
            )
        return arrays_of(request.model)

    def evaluate(self, request: Measuring) -> Evaluation:
        """Return the model's loss and accuracy, in evaluation mode where no noise is given."""
        load_arrays(request.model, request.arrays)
        if request.noise is None:
            return Evaluation(*evaluate(request.task, request.model, request.data))
        with seeded_noise(*request.noise, request.data.x.device):
            return Evaluation(*evaluate(request.task, request.model, request.data, training=True))

    def gradient(self, request: Differentiating) -> Arrays:
        """Return the gradient by the names of the trainable parameters."""
        load_arrays(request.model, request.arrays)
        data = request.data
        if request.batch is not None:
            rows = torch.from_numpy(request.batch).to(data.x.device)
            data = Split(data.x[rows], data.y[rows])
        names = [name for name, p in request.model.named_parameters() if p.requires_grad]
        found = mean_gradient(request.task, request.model, data)
        return {name: g.cpu().numpy() for name, g in zip(names, found, strict=True)}
