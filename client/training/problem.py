"""The work of one local training: a client's examples, its minibatches, and the loss on them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.limits.deadline import Deadline
from client.training.precision import forward
from fedappeal.core.local_rule import LocalTrainingSettings
from fedappeal.protocol.draws import Minibatches
from fedappeal.tasks.examples import Split
from fedappeal.tasks.task import Task


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

    def minibatches(self) -> Iterator[Tensor]:
        """Yield the indices of one minibatch after another, on the device of the inputs."""
        for block in self.batches.blocks() if isinstance(self.batches, Minibatches) else (self.batches,):
            yield from torch.from_numpy(block).to(self.data.device)

    def loss_of(self, model: nn.Module, minibatch: Tensor) -> Tensor:
        """Return a model's mean loss on a minibatch, given its indices, in the precision of the settings.

        Raises:
            LimitReached: where the time for training is over.
        """
        if self.deadline is not None:
            self.deadline.check()
        batch = self.data.take(minibatch)
        return self.task.loss(forward(self.task, model, batch.x, self.settings.training_precision), batch.y)
