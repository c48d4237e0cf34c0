"""The local training of many clients as one batch, whatever form their models are calculated in.

Replaces the arithmetic of `client.training.descent` and nothing else: minibatches, decisions and settings come from
the same functions as in a deployed client, and the result is the same to float tolerance (bit for bit it is not: a
batched product adds in another order). How the gradients of all clients are found is
the form's: by batched layers (`layered`), or by PyTorch's vmap (`vectorised`).
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.training.devices import on_device
from client.training.noise import begin_forward_pass
from fedappeal.core.local_rule import BatchedTerms, LocalRule
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.system.last_result import LastResult
from fedappeal.tasks.examples import Split, Structure, tensors_of
from fedappeal.tasks.share import names_of

Parameters = Mapping[str, Tensor]
"""All clients' parameters by name, each of shape ``(clients, *shape)``."""


class NotBatchable(Exception):
    """A model without a batched form; the message names the layer."""


@dataclass(frozen=True)
class Cohort:
    """The models of several clients, side by side.

    Attributes:
        trained: what is trained, ``(clients, *shape)`` by name.
        own: what is not trained and differs between clients, frozen parameters and buffers, in the same way.
        shared: what is not trained and is the same for all, of shape ``shape``.
    """

    trained: dict[str, Tensor]
    own: Parameters = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)

    def first(self, count: int) -> "Cohort":
        """Return the first clients, as views."""
        if all(len(tensor) == count for tensor in self.trained.values()):
            return self
        return Cohort(_first(count, self.trained), _first(count, self.own), self.shared)


def _first(count: int, of: Parameters) -> dict[str, Tensor]:
    return {name: tensor[:count] for name, tensor in of.items()}


@dataclass(frozen=True)
class Target:
    """Arrays that become ``keep`` times themselves plus ``alpha`` times a gradient.

    Attributes:
        arrays: by name, ``(clients, *shape)``; may be the parameters themselves.
        alpha: factor of the gradient.
        keep: factor of what is there.
    """

    arrays: Parameters
    alpha: float = 1.0
    keep: float = 1.0

    def add(self, name: str, gradient: Tensor) -> None:
        """Add the gradient by one parameter."""
        if self.keep != 1:
            self.arrays[name].mul_(self.keep)
        self.arrays[name].add_(gradient, alpha=self.alpha)

    def add_product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add the gradient by one parameter, the clients' products of two matrices each, in one pass."""
        self.arrays[name].baddbmm_(left, right, beta=self.keep, alpha=self.alpha)


class BatchedForm(Protocol):
    """A way to calculate the gradients of several clients' models at once.

    Attributes:
        name: what the form is called.
        largest_batch: most clients that train as one batch.
        smallest_batch: fewest; fewer train one by one.
        one_size: whether all clients of a batch must have as many examples in a minibatch.
        trained: names of the parameters that are trained, in the model's order.
        unused: those on which no client's latest loss depended; `add_gradient` left them as they were in the target.
    """

    name: str
    largest_batch: int
    smallest_batch: int
    one_size: bool
    trained: Sequence[str]
    unused: Collection[str]

    def add_gradient(self, clients: Cohort, batch: Split, weights: Tensor, target: Target, training: bool) -> None:
        """Add the gradient of each client's loss.

        Args:
            clients: the models.
            batch: a minibatch of each; tensors of shape ``(clients, size, ...)``.
            weights: of each example in its client's loss, shape ``(clients, size)``.
            target: where it is added.
            training: whether dropout is on.
        """

    def loss(self, clients: Cohort, batch: Split, weights: Tensor) -> Tensor:
        """Return the sum of the clients' mean losses in training mode, for autograd; see `add_gradient`."""


@dataclass(frozen=True)
class Examples:
    """The examples of all clients, one after another, on one device.

    Attributes:
        x: inputs: a tensor of shape ``(n, *input_shape)``, or a structure of tensors.
        y: labels, in the same way.
        start: where each client's examples begin, shape ``(clients + 1,)``; the last is n.
        places: by client, which of these examples are its own; None: those of client k are the k-th.
    """

    x: Structure
    y: Structure
    start: Sequence[int]
    places: Mapping[int, int] | None = None

    @property
    def device(self) -> torch.device:
        """The device of the examples."""
        return next(tensors_of(self.x))[1].device

    def take(self, rows: Tensor | slice) -> Split:
        """Return the examples of the given rows; tensors of shape ``(*rows.shape, ...)``."""
        return Split.of_rows(self.x, self.y, rows)

    def of_client(self, k: int) -> Split:
        """Return one client's examples, as views."""
        return self.take(slice(*self.span(k)))

    def span(self, k: int) -> tuple[int, int]:
        """Return the start and end of a client's examples."""
        place = k if self.places is None else self.places[k]
        return self.start[place], self.start[place + 1]


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
    return Batches(on_device(all_rows, device), on_device(all_weights, device), active), places


def steps_of_rows(start: int, stop: int, size: int) -> tuple[Tensor, Tensor]:
    """Return a client's rows ``start..stop-1`` in steps, with weights of sum 1.

    Steps have at most ``size`` rows.
    """
    steps = -(-(stop - start) // size)
    size = -(-(stop - start) // steps)
    rows = torch.arange(start, start + steps * size).view(steps, size)
    weights = (rows < stop).float() / (stop - start)
    return rows.clamp_(max=stop - 1), weights


def gradients(
    form: BatchedForm, clients: Cohort, examples: Examples, batches: Batches, training: bool = False
) -> dict[str, Tensor]:
    """Return the gradient of each client's loss, summed over its steps.

    Args:
        form: finds the gradients.
        clients: the clients' models, in the places of ``batches``.
        examples: all clients' training examples.
        batches: each client's minibatches.
        training: whether dropout is on.
    """
    sums = {name: torch.zeros_like(p) for name, p in clients.trained.items()}
    for step, active in enumerate(batches.active):
        rows, weights = batches.rows[step, :active], batches.weights[step, :active]
        target = Target(_first(active, sums))
        begin_forward_pass(step)
        form.add_gradient(clients.first(active), examples.take(rows), weights, target, training)
    return sums


_NOT_KEPT = torch.empty(0)
"""In place of parameters before a step, where the rule says that it does not read them: then it must not."""


def train(
    form: BatchedForm,
    clients: Cohort,
    examples: Examples,
    batches: Batches,
    training: LocalTrainingSettings,
    terms: BatchedTerms | None = None,
) -> None:
    """Train all clients as one batch, in place: the arithmetic of `client.training.descent`.

    Args:
        form: finds the gradients.
        clients: the clients' models, in the places of ``batches``.
        examples: all clients' training examples.
        batches: what each client sees at each step.
        training: learning rate, momentum and weight decay.
        terms: what the local rule adds to each gradient; None: nothing.
    """
    lr, decay = training.learning_rate, training.weight_decay
    velocity = {name: torch.zeros_like(p) for name, p in clients.trained.items()} if training.momentum else {}
    for step, active in enumerate(batches.active):
        here, moving = clients.first(active), _first(active, velocity)
        rows, weights = batches.rows[step, :active], batches.weights[step, :active]
        # With momentum the gradient goes into the velocity, without it straight into the parameters.
        target = Target(moving, keep=training.momentum) if moving else Target(here.trained, -lr, 1 - lr * decay)
        before: Parameters = {}
        if terms is not None and terms.needs_before:
            before = here.trained if moving else {name: p.clone() for name, p in here.trained.items()}
        begin_forward_pass(step)
        form.add_gradient(here, examples.take(rows), weights, target, training=True)
        used = [name for name in target.arrays if name not in form.unused]
        for name in used:
            if moving and decay:
                moving[name].add_(here.trained[name], alpha=decay)
            if terms is not None:
                terms.add(name, target.arrays[name], before.get(name, _NOT_KEPT), active, target.alpha)
        if moving:
            torch._foreach_add_([here.trained[name] for name in used], [moving[name] for name in used], alpha=-lr)


@dataclass(frozen=True)
class StackedProblem:
    """The `fedappeal.core.local_rule.LocalProblem` of clients side by side, which take equally many steps.

    Attributes:
        form: finds gradients.
        clients: the clients' models, in the places of ``batches``.
        examples: all clients' training examples.
        batches: each client's minibatches.
        settings: of their training.
    """

    form: BatchedForm
    clients: Cohort
    examples: Examples
    batches: Batches
    settings: LocalTrainingSettings
    _passes: Iterator[int] = field(default_factory=itertools.count, init=False)

    def minibatches(self) -> Iterator[Tensor]:
        """Yield the rows of one minibatch of all clients after another, shape ``(clients, size)``."""
        yield from self.batches.rows

    def loss_of(self, model: nn.Module, minibatch: Tensor) -> Tensor:
        """Return the sum of the clients' losses, whose gradient by a client's parameters is its own loss's."""
        begin_forward_pass(next(self._passes))
        return self.form.loss(self.clients, self._taken(minibatch), self.batches.weights[0])

    def gradient_of(self, model: nn.Module, minibatch: Tensor) -> tuple[list[Tensor], list[int]]:
        """Return the gradients of the clients' losses, and the places of unused parameters."""
        gradients = {name: torch.zeros_like(p) for name, p in self._values.trained.items()}
        unused = self._add_gradient(minibatch, Target(gradients))
        return list(gradients.values()), [place for place, name in enumerate(gradients) if name in unused]

    def proximal_step(
        self, model: nn.Module, minibatch: Tensor, centre: Sequence[Tensor], strength: float, rate: float
    ) -> None:
        """Take one step of all clients, in two passes over their parameters."""
        values = self._values.trained
        unused = self._add_gradient(minibatch, Target(values, -rate, 1 - rate * strength))
        moved = [(p, c) for (name, p), c in zip(values.items(), centre, strict=True) if name not in unused]
        torch._foreach_add_(*zip(*moved, strict=True), alpha=rate * strength)

    @torch.no_grad()
    def _add_gradient(self, minibatch: Tensor, target: Target) -> Collection[str]:
        """Add the gradients of the clients' losses, and return the names of unused parameters."""
        begin_forward_pass(next(self._passes))
        self.form.add_gradient(self._values, self._taken(minibatch), self.batches.weights[0], target, training=True)
        return self.form.unused

    @cached_property
    def _values(self) -> Cohort:
        """The clients' models without autograd, in the same memory."""
        return replace(self.clients, trained={name: p.detach() for name, p in self.clients.trained.items()})

    @cached_property
    def _taken(self) -> Callable[[Tensor], Split]:
        """Returns a minibatch's examples: a rule may take several steps on one."""
        return LastResult(self.examples.take)


@torch.enable_grad()
def train_stacked(
    form: BatchedForm,
    clients: Cohort,
    examples: Examples,
    batches: Batches,
    training: LocalTrainingSettings,
    rule: LocalRule,
) -> None:
    """Train all clients at once by a rule that `stacks`, in place; other arguments as of `train`."""
    trained: dict[str, Tensor] = {name: nn.Parameter(stacked) for name, stacked in clients.trained.items()}
    cohort = Cohort(trained, clients.own, clients.shared)
    rule.train(nn.ParameterList(trained.values()), StackedProblem(form, cohort, examples, batches, training))


@dataclass(frozen=True)
class ModelParts:
    """The names of a model's trained and fixed arrays.

    Attributes:
        trained: names of the parameters that are trained, in the model's order.
        fixed: names of frozen parameters and buffers.
    """

    trained: Sequence[str]
    fixed: Sequence[str]

    @classmethod
    def of(cls, module: nn.Module) -> "ModelParts":
        """Return a model's parts."""
        trained = [name for name, p in module.named_parameters() if p.requires_grad]
        return cls(trained, [name for name in names_of(module) if name not in trained])

    def stacked(self, models: Sequence[Arrays], device: torch.device) -> Cohort:
        """Return the clients' models side by side.

        What is not trained and equal is there once.
        """
        trained = {name: _one_tensor([arrays[name] for arrays in models], device) for name in self.trained}
        differing, shared = {}, {}
        for name in filter(models[0].__contains__, self.fixed):  # what is never sent is the module's own
            arrays = [model[name] for model in models]
            if all(array is arrays[0] or np.array_equal(array, arrays[0]) for array in arrays):
                shared[name] = on_device(torch.from_numpy(np.array(arrays[0])), device)
            else:
                differing[name] = _one_tensor(arrays, device)
        return Cohort(trained, differing, shared)


def arrays_of_clients(places: Sequence[int], arrays: Arrays) -> list[Arrays]:
    """Return each client's arrays.

    Args:
        places: which client each place holds.
        arrays: of all places, ``(clients, *shape)`` by name.
    """
    place_of = {k: place for place, k in enumerate(places)}
    return [{name: values[place_of[k]] for name, values in arrays.items()} for k in range(len(places))]


def _one_tensor(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> Tensor:
    if all(a is arrays[0] for a in arrays):
        one = on_device(torch.from_numpy(np.array(arrays[0])), device)
        return one.expand(len(arrays), *one.shape).clone()
    return on_device(torch.from_numpy(np.stack(arrays)), device)
