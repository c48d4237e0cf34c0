"""Local problems out of a loss function and tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from client.training.requests import TrainingProblem
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.tasks.task import ClientData, Split, Structure, Task


class Classification(Task):
    """A task of nothing but cross-entropy."""

    def __init__(self) -> None:
        """No settings."""

    def initial_model(self, seed: int) -> nn.Module:
        raise NotImplementedError

    def load(self, client: int) -> ClientData:
        raise NotImplementedError


class GivenLoss(Classification):
    """A task of nothing but a loss."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        self._loss = loss

    def loss(self, outputs: Any, y: Structure, reduction: str = "mean") -> Tensor:
        return self._loss(outputs, y)


def local_problem(
    loss: Callable[..., Tensor],
    x: Tensor,
    y: Tensor,
    batches: NDArray[np.int64],
    training: LocalTrainingSettings,
) -> TrainingProblem:
    """The problem of one local training, with a mean loss of outputs and labels."""
    return TrainingProblem(GivenLoss(loss), Split(x, y), batches, training)
