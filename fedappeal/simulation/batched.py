"""One model of many clients, and their local training as one batch.

Replaces the arithmetic of `client.training.descent` and nothing else: minibatches, decisions and settings come from
the same functions as in a deployed client, and the result is the same to float tolerance (bit for bit it is not: a
batched product adds in another order, and dropout draws one mask for all clients of a batch).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from client.training.rule import BatchedTerms
from client.training.settings import LocalTrainingSettings
from fedappeal.simulation.layers import Layer, LossGradient, Parameters, batched_layer
from fedappeal.tasks.examples import Structure, take, tensors_of


class NotBatchable(Exception):
    """A model without a batched form; the message names the layer."""


class BatchedModel:
    """The layers of a module, over parameters that carry a leading axis of clients."""

    def __init__(self, module: nn.Module) -> None:
        """Take the layers of a module built of `nn.Sequential`.

        Raises:
            NotBatchable: names the layer that has no batched form.
        """
        self._layers = list(_layers(module, ""))
        trained = [i for i, layer in enumerate(self._layers) if hasattr(layer, "_weight")]
        if not trained:
            raise NotBatchable("there is nothing to train")
        self._first_trained = trained[0]
        frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
        if frozen:
            raise NotBatchable(f"parameter '{frozen[0]}' is not trained")
        tied = len(list(module.named_parameters(remove_duplicate=False))) - len(list(module.parameters()))
        if tied:
            raise NotBatchable("layers share parameters")

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return logits ``(clients, batch, C)`` of inputs ``(clients, batch, *input_shape)``."""
        for layer in self._layers:
            x = layer.forward(x, parameters, training)
        return x

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float) -> None:
        """Add ``alpha`` times the gradient to ``into``, given the gradient of the logits of the last `forward`."""
        for i in range(len(self._layers) - 1, self._first_trained - 1, -1):
            grad = self._layers[i].backward(grad, parameters, into, alpha, i == self._first_trained)


def _layers(module: nn.Module, name: str) -> Iterator[Layer]:
    if type(module) is nn.Sequential:
        for key, child in module.named_children():
            yield from _layers(child, f"{name}{key}.")
    elif (layer := batched_layer(name, module)) is not None:
        yield layer
    else:
        raise NotBatchable(f"layer '{name.rstrip('.') or 'model'}' ({type(module).__name__}) has no batched form")


@dataclass(frozen=True)
class Examples:
    """The examples of all clients, one after another, on one device.

    Attributes:
        x: inputs: a tensor of shape ``(n, *input_shape)``, or a structure of tensors.
        y: labels, in the same way.
        start: where each client's examples begin, shape ``(clients + 1,)``; the last is n.
    """

    x: Structure
    y: Structure
    start: Sequence[int]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(tensors_of(self.x))[1].device


@dataclass(frozen=True)
class Batches:
    """Minibatches of several clients, step by step; clients with most steps come first.

    Attributes:
        rows: rows of `Examples`, int64, shape ``(steps, clients, size)``.
        weights: weight of each example in its client's mean, same shape; 0 where a client has none.
        active: number of clients that still train at each step.
    """

    rows: Tensor
    weights: Tensor
    active: Sequence[int]


def line_up(
    rows: Sequence[Tensor], device: torch.device, weights: Sequence[Tensor] | None = None
) -> tuple[Batches, list[int]]:
    """Return the clients' minibatches as one batch a step, and which client each place holds.

    Args:
        rows: each client's minibatches, as rows of `Examples` of shape ``(steps_k, size_k)``.
        device: where they go.
        weights: of the same shapes; None: each step is the mean of its examples.

    Returns:
        The batches, and for each of their places an index into ``rows``.
    """
    places = sorted(range(len(rows)), key=lambda k: -len(rows[k]))
    steps, size = max(len(r) for r in rows), max(r.shape[1] for r in rows)
    all_rows = torch.zeros((steps, len(rows), size), dtype=torch.int64)
    all_weights = torch.zeros((steps, len(rows), size))
    for place, k in enumerate(places):
        own_steps, own_size = rows[k].shape
        all_rows[:own_steps, place, :own_size] = rows[k]
        all_weights[:own_steps, place, :own_size] = 1.0 / own_size if weights is None else weights[k]
    active = [sum(len(r) > step for r in rows) for step in range(steps)]
    return Batches(all_rows.to(device), all_weights.to(device), active), places


def whole(start: int, stop: int, size: int) -> tuple[Tensor, Tensor]:
    """Return all of a client's rows ``start..stop-1`` as steps of at most ``size``, with weights that add to 1."""
    steps = -(-(stop - start) // size)
    size = -(-(stop - start) // steps)
    rows = torch.arange(start, start + steps * size).view(steps, size)
    weights = (rows < stop).float() / (stop - start)
    return rows.clamp_(max=stop - 1), weights


def _of_logits(
    model: BatchedModel,
    parameters: Parameters,
    examples: Examples,
    batches: Batches,
    step: int,
    loss_gradient: LossGradient,
    training: bool,
) -> Tensor:
    """Return the gradient of each client's weighted loss by its logits, at one step."""
    active = batches.active[step]
    rows, weights = batches.rows[step, :active], batches.weights[step, :active]
    flat = rows.flatten()
    logits = model.forward(cast(Tensor, take(examples.x, rows)), parameters, training)
    of_each = loss_gradient(logits.flatten(0, 1), cast(Tensor, take(examples.y, flat)))
    return of_each.view_as(logits).mul_(weights.unsqueeze(-1))


def _first(clients: int, of: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the first clients' part of all clients' tensors, as views."""
    if all(len(tensor) == clients for tensor in of.values()):
        return of
    return {name: tensor[:clients] for name, tensor in of.items()}


def gradients(
    model: BatchedModel,
    parameters: Mapping[str, Tensor],
    examples: Examples,
    batches: Batches,
    loss_gradient: LossGradient,
) -> dict[str, Tensor]:
    """Return the gradient of each client's loss, summed over its steps, in evaluation mode; arguments as `train`."""
    found = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for step, active in enumerate(batches.active):
        here = _first(active, parameters)
        of_logits = _of_logits(model, here, examples, batches, step, loss_gradient, training=False)
        model.backward(of_logits, here, _first(active, found), 1.0)
    return found


_NOT_KEPT = torch.empty(0)
"""In place of parameters before a step, where the rule says that it does not read them: then it must not."""


def train(
    model: BatchedModel,
    parameters: dict[str, Tensor],
    examples: Examples,
    batches: Batches,
    loss_gradient: LossGradient,
    training: LocalTrainingSettings,
    terms: BatchedTerms | None = None,
) -> None:
    """Train all clients as one batch, in place: the arithmetic of `client.training.descent`.

    Args:
        model: the batched layers.
        parameters: the clients' parameters, ``(clients, *shape)`` by name, in the places of ``batches``.
        examples: all clients' training examples.
        batches: what each client sees at each step.
        loss_gradient: gradient of each example's loss by its logits.
        training: learning rate, momentum and weight decay.
        terms: what the local rule adds to each gradient; None: nothing.
    """
    lr, decay = training.learning_rate, training.weight_decay
    needs_before = bool(decay) or (terms is not None and terms.needs_before)
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()} if training.momentum else {}
    for step, active in enumerate(batches.active):
        here, moving = _first(active, parameters), _first(active, velocity)
        of_logits = _of_logits(model, here, examples, batches, step, loss_gradient, training=True)
        if moving:
            torch._foreach_mul_(list(moving.values()), training.momentum)
        # With momentum the gradient goes into the velocity, without it straight into the parameters.
        into, sign = (moving, 1.0) if moving else (here, -lr)
        before = {name: p.clone() for name, p in here.items()} if needs_before else {}
        model.backward(of_logits, here, into, sign)
        for name, target in into.items():
            if decay:
                target.add_(before[name], alpha=sign * decay)
            if terms is not None:
                terms.add(name, target, before.get(name, _NOT_KEPT), active, sign)
        if moving:
            for name, parameter in here.items():
                parameter.add_(moving[name], alpha=-lr)
