"""The arithmetic of a client: training, loss and gradient, as requests with a result.

A deployed client answers them one after the other. The in-process engine puts another `Arithmetic` in its place,
which does the same for many clients side by side; the same code decides what is asked for.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.learner import Job
from client.limits.guard import Deadline
from client.training.descent import gradients_of, trainable
from client.training.devices import on_device, on_host
from client.training.models import FLOAT32, arrays_of, evaluate, forward, load_arrays, mean_gradient
from client.training.noise import KEYED, Noise, begin_forward_pass, keyed_dropout, seeded_noise
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.tasks.task import Split, Task


@dataclass(frozen=True)
class TrainingProblem:
    """A `fedappeal.core.local_rule.LocalProblem` on a client's own examples.

    Attributes:
        task: gives the loss.
        data: the client's training examples.
        batches: indices into ``data``, shape ``(steps * draws, batch size)``; drawn already, or as they are needed.
        settings: learning rate and so on.
        deadline: when training has to stop; None: never.
    """

    task: Task
    data: Split
    batches: NDArray[np.int64] | Minibatches
    settings: LocalTrainingSettings
    deadline: Deadline | None = None
    _passes: Iterator[int] = field(default_factory=itertools.count, init=False)

    def minibatches(self) -> Iterator[Tensor]:
        """Yield the indices of one minibatch after another, on the device of the inputs."""
        for block in self.batches.blocks() if isinstance(self.batches, Minibatches) else (self.batches,):
            yield from on_device(torch.from_numpy(block), self.data.device)

    def loss_of(self, model: nn.Module, minibatch: Tensor) -> Tensor:
        """Return a model's mean loss on a minibatch, given its indices, in the precision of the settings.

        Raises:
            LimitReached: where the time for training is over.
        """
        if self.deadline is not None:
            self.deadline.check()
        begin_forward_pass(next(self._passes))
        batch = self.data.take(minibatch)
        return self.task.loss(forward(self.task, model, batch.x, self.settings.training_precision), batch.y)

    def gradient_of(self, model: nn.Module, minibatch: Tensor) -> tuple[list[Tensor], list[int]]:
        """Return that loss's gradient by the trained parameters, and the places of those that it does not use."""
        return gradients_of(self.loss_of(model, minibatch), trainable(model))

    def proximal_step(
        self, model: nn.Module, minibatch: Tensor, centre: Sequence[Tensor], strength: float, rate: float
    ) -> None:
        """Take one step down that loss plus ``strength / 2 |w - centre|^2``, in place."""
        parameters = trainable(model)
        gradients, unused = gradients_of(self.loss_of(model, minibatch), parameters)
        with torch.no_grad():
            pull = torch._foreach_sub(parameters, list(centre))
            torch._foreach_mul_(pull, strength)
            torch._foreach_add_(pull, gradients)
            for place in unused:
                pull[place].zero_()
            torch._foreach_add_(parameters, pull, alpha=-rate)


@dataclass(frozen=True, eq=False)
class Request:
    """One calculation of one client on one model.

    Attributes:
        task: gives loss and metrics.
        model: holds any values; they may be replaced.
        place: the client's number in its task.
        data: the examples.
        arrays: the model to start from or to measure, by name; parameters that are never trained may be missing.
    """

    task: Task
    model: nn.Module
    place: int
    data: Split
    arrays: Arrays


@dataclass(frozen=True, eq=False)
class TrainRequest(Request):
    """Local training of one client on its training examples.

    Attributes:
        job: by which rule, how much and what for; distinct purposes draw distinct noise.
        batches: indices into ``data``, shape ``(draws, batch size)``; drawn already, or as they are needed.
        seed: the run's seed.
        client_id: whose noise (dropout) it is.
    """

    job: Job
    batches: NDArray[np.int64] | Minibatches
    seed: int
    client_id: str

    @property
    def noise(self) -> Noise:
        """The noise inside its model."""
        job, client = self.job, f"{self.client_id}/{self.job.purpose}"
        return Noise(self.seed, client, job.server_round, job.training.dropout_noise == KEYED)

    @property
    def group(self) -> object:
        """Grouping key: requests with equal keys can be trained in one batch."""
        job, training = self.job, self.job.training.model_copy(update={"local_steps": 0, "local_epochs": 0})
        rule = (type(job.rule), job.rule.settings)
        return ("train", id(self.task), rule, training, self.seed, job.server_round, job.purpose)


@dataclass(frozen=True, eq=False)
class EvaluateRequest(Request):
    """The loss and metrics of a model on one client's data.

    Attributes:
        split: which of the client's splits the examples are.
        shared: content hash of the model where others may be measuring the same one; else empty.
        noise: measures in training mode, with this noise in the model's dropout; None: in evaluation mode.
        precision: of the forward pass without noise.
    """

    split: str
    shared: str
    noise: Noise | None = None
    precision: str = FLOAT32

    @property
    def group(self) -> object:
        """Grouping key: requests with equal keys are for the same model on the same split."""
        return ("evaluate", id(self.task), self.shared, self.split, self.precision)


@dataclass(frozen=True, eq=False)
class GradientRequest(Request):
    """The gradient of a model's mean loss on one client's training examples, in evaluation mode.

    Attributes:
        batch: indices into ``data``; None: all of them.
    """

    batch: NDArray[np.int64] | None

    @property
    def group(self) -> object:
        """Grouping key: requests with equal keys can be differentiated in one batch."""
        return ("gradient", id(self.task))


class Arithmetic:
    """One client's arithmetic at a time: a deployed client's."""

    def train(self, request: TrainRequest) -> Arrays:
        """Return the locally trained model by name."""
        with seeded_noise(request.noise, request.data.device):
            return train_without_seed(request)

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Return the model's loss and metrics, in evaluation mode where no noise is given."""
        load_arrays(request.model, request.arrays)
        if request.noise is None:
            return evaluate(request.task, request.model, request.data, precision=request.precision)
        with seeded_noise(request.noise, request.data.device), keyed_dropout([request.noise]):
            return evaluate(request.task, request.model, request.data, training=True)

    def gradient(self, request: GradientRequest) -> Arrays:
        """Return the gradient by the names of the trainable parameters."""
        load_arrays(request.model, request.arrays)
        data = request.data
        if request.batch is not None:
            data = data.take(on_device(torch.from_numpy(request.batch), data.device))
        names = [name for name, p in request.model.named_parameters() if p.requires_grad]
        return dict(on_host(dict(zip(names, mean_gradient(request.task, request.model, data), strict=True))))


def train_without_seed(request: TrainRequest) -> Arrays:
    """Return the locally trained model by name; what it draws but dropout is whatever the generator gives."""
    load_arrays(request.model, request.arrays)
    request.model.train()
    job = request.job
    problem = TrainingProblem(request.task, request.data, request.batches, job.training, job.deadline)
    with keyed_dropout([request.noise]):
        job.rule.train(request.model, problem)
    return arrays_of(request.model, request.arrays.keys())
