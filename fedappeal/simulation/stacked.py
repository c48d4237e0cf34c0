"""A model of many clients side by side, and local training of all of them at once.

Replaces the arithmetic of `client.descent` and nothing else: batches, decisions and settings come from the same
functions as in a deployed client, and the result is the same to float tolerance (bit for bit it is not: a batched
product adds in another order, and dropout draws one mask for all).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from client.work import LocalWork
from fedappeal.simulation.layers import Layer, Parameters, stacked


class NotStackable(Exception):
    """A model that cannot be stacked; the message names the layer."""


class StackedModel:
    """The layers of a module, over parameters that carry a leading axis of clients."""

    def __init__(self, module: nn.Module) -> None:
        """Take the layers of a module built of `nn.Sequential`.

        Raises:
            NotStackable: names the layer that has no stacked form.
        """
        self._layers = list(_layers(module, ""))
        trained = [i for i, layer in enumerate(self._layers) if hasattr(layer, "_weight")]
        if not trained:
            raise NotStackable("there is nothing to train")
        self._first_trained = trained[0]
        frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
        if frozen:
            raise NotStackable(f"parameter '{frozen[0]}' is not trained")
        tied = len(list(module.named_parameters(remove_duplicate=False))) - len(list(module.parameters()))
        if tied:
            raise NotStackable("layers share parameters")

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
    elif (layer := stacked(name, module)) is not None:
        yield layer
    else:
        raise NotStackable(f"layer '{name.rstrip('.') or 'model'}' ({type(module).__name__}) has no stacked form")


@dataclass(frozen=True)
class Examples:
    """The examples of all clients, one after another, on one device.

    Attributes:
        x: inputs, shape ``(n, *input_shape)``.
        y: labels, shape ``(n,)``.
        start: where each client's examples begin, shape ``(clients + 1,)``; the last is n.
    """

    x: Tensor
    y: Tensor
    start: Sequence[int]


@dataclass(frozen=True)
class Batches:
    """Minibatches of several clients, step by step; those with most steps come first.

    Attributes:
        rows: rows of `Examples`, int64, shape ``(steps, clients, size)``.
        weights: weight of each example in its client's mean, same shape; 0 where a client has none.
        active: number of clients that still train, of each step.
    """

    rows: Tensor
    weights: Tensor
    active: Sequence[int]


def line_up(
    rows: Sequence[Tensor], device: torch.device, weights: Sequence[Tensor] | None = None
) -> tuple[Batches, list[int]]:
    """Line up the clients' minibatches.

    Args:
        rows: each client's, as rows of `Examples` of shape ``(steps_k, size_k)``.
        device: where they go.
        weights: of the same shapes; None: each step is the mean of its examples.

    Returns:
        The batches, and which client (index into ``rows``) each of their places holds.
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


LossGradient = Callable[[Tensor, Tensor], Tensor]


def whole(start: int, stop: int, size: int) -> tuple[Tensor, Tensor]:
    """Return all of a client's rows ``start..stop-1`` as steps of at most ``size``, with weights that add to 1."""
    steps = -(-(stop - start) // size)
    size = -(-(stop - start) // steps)
    rows = torch.arange(start, start + steps * size).view(steps, size)
    weights = (rows < stop).float() / (stop - start)
    return rows.clamp_(max=stop - 1), weights


def _of_logits(
    model: StackedModel,
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
    x = examples.x.index_select(0, flat).view(*rows.shape, *examples.x.shape[1:])  # a third of the time of x[rows]
    logits = model.forward(x, parameters, training)
    of_each = loss_gradient(logits.flatten(0, 1), examples.y.index_select(0, flat))
    return of_each.view_as(logits).mul_(weights.unsqueeze(-1))


def _first(clients: int, of: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the first clients' part of stacked tensors, as views."""
    if all(len(tensor) == clients for tensor in of.values()):
        return of
    return {name: tensor[:clients] for name, tensor in of.items()}


def gradients(
    model: StackedModel,
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


def train(
    model: StackedModel,
    parameters: dict[str, Tensor],
    examples: Examples,
    batches: Batches,
    loss_gradient: LossGradient,
    work: LocalWork,
    *,
    proximal_mu: float = 0.0,
    correction: Mapping[str, Tensor] | None = None,
) -> None:
    """Train all clients side by side, in place: the arithmetic of `client.descent`.

    Args:
        model: the stacked layers.
        parameters: the clients' parameters, ``(clients, *shape)`` by name, in the places of ``batches``.
        examples: all clients' training examples.
        batches: what each client sees at each step.
        loss_gradient: gradient of each example's loss by its logits.
        work: learning rate, momentum and weight decay.
        proximal_mu: FedProx's mu; 0: none.
        correction: added to every gradient, by name (SCAFFOLD).
    """
    lr = work.learning_rate
    anchor = {name: p.clone() for name, p in parameters.items()} if proximal_mu else {}
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()} if work.momentum else {}
    for step, active in enumerate(batches.active):
        here, moving = _first(active, parameters), _first(active, velocity)
        of_logits = _of_logits(model, here, examples, batches, step, loss_gradient, training=True)
        if moving:
            torch._foreach_mul_(list(moving.values()), work.momentum)
        # With momentum the gradient goes into the velocity, without it straight into the parameters.
        into, sign = (moving, 1.0) if moving else (here, -lr)
        before = {name: p.clone() for name, p in here.items()} if proximal_mu or work.weight_decay else {}
        model.backward(of_logits, here, into, sign)
        for name, target in into.items():
            if work.weight_decay:
                target.add_(before[name], alpha=sign * work.weight_decay)
            if proximal_mu:
                target.add_(before[name] - anchor[name][:active], alpha=sign * proximal_mu)
            if correction:
                target.add_(correction[name][:active], alpha=sign)
        if moving:
            for name, parameter in here.items():
                parameter.add_(moving[name], alpha=-lr)
