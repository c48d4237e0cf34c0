"""Clients side by side by batched layers: one model of many clients, with the backward pass written out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedappeal.simulation.forms.batched import Clients, NotBatchable, Parameters
from fedappeal.simulation.forms.chain import Chain
from fedappeal.simulation.forms.layers import LossGradient, cross_entropy_gradient
from fedappeal.tasks.examples import Split, only_tensor
from fedappeal.tasks.task import Task


class BatchedModel(Chain):
    """The layers of a module, over parameters that carry a leading axis of clients."""

    def __init__(self, module: nn.Module) -> None:
        """Take the layers of a module that calls them one after another.

        Raises:
            NotBatchable: names the layer that has no batched form.
        """
        super().__init__(module)
        self._first_trained = {
            training: next(i for i, layer in enumerate(layers) if hasattr(layer, "_weight"))
            for training, layers in self.layers.items()
        }
        self._training = True

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return logits ``(clients, batch, C)`` of inputs ``(clients, batch, *input_shape)``."""
        self._training = training
        for layer in self.layers[training]:
            x = layer.forward(x, parameters, training)
        return x

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float) -> None:
        """Add ``alpha`` times the gradient to ``into``, given the gradient of the logits of the last `forward`."""
        layers, first = self.layers[self._training], self._first_trained[self._training]
        for i in range(len(layers) - 1, first - 1, -1):
            grad = layers[i].backward(grad, parameters, into, alpha, i == first)


class LayeredForm:
    """Batched layers, and the gradient of a task's loss by the logits; see `BatchedForm`."""

    name = "layers"
    largest_batch = 32
    """More would push each other's parameters out of the caches."""
    smallest_batch = 1
    one_size = False

    def __init__(self, task: Task, module: nn.Module) -> None:
        """Take a task's loss and a model's layers.

        Raises:
            NotBatchable: names the layer that has no batched form.
        """
        if type(task).forward is not Task.forward:
            raise NotBatchable(f"task '{task.name}' calls its model in a way of its own")
        self.trained: Sequence[str] = [name for name, _ in module.named_parameters()]
        self.model = BatchedModel(module)
        self._loss_gradient = loss_gradient(task)

    def add_gradient(
        self, clients: Clients, batch: Split, weights: Tensor, into: Parameters, alpha: float, training: bool
    ) -> None:
        """See `BatchedForm`."""
        x, y = only_tensor(batch.x), only_tensor(batch.y)
        if x is None or y is None or not x.is_floating_point():
            raise NotBatchable("inputs are no lone tensor of floats")
        logits = self.model.forward(x, clients.trained, training)
        gradient = self._loss_gradient(logits.flatten(0, 1), y.flatten(0, 1)).view_as(logits)
        gradient.mul_(weights.view(*weights.shape, *[1] * (logits.ndim - weights.ndim)))
        self.model.backward(gradient, clients.trained, into, alpha)


def loss_gradient(task: Task) -> LossGradient:
    """Return the gradient of each example's loss by its logits: written out for cross-entropy, else by autograd."""
    if type(task).loss is Task.loss:
        return cross_entropy_gradient

    def gradient(logits: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            at = logits.detach().requires_grad_()
            return torch.autograd.grad(task.loss(at, y, reduction="sum"), at)[0]

    return gradient
