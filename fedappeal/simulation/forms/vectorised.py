"""Clients side by side by PyTorch's vmap: any model whose operations have a batching rule.

The loss of one client is a pure function of its parameters and its minibatch (`torch.func.functional_call`). Vmap
calculates it for all clients at once, and autograd differentiates the sum of their losses, of which each depends on
one client's parameters alone. That is ``vmap(grad)`` with the two the other way round: the gradients are the same,
and the backward pass, two thirds of the work, runs without vmap's cost an operation.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedappeal.simulation.forms.batched import Cohort, NotBatchable, Parameters, Target
from fedappeal.simulation.forms.convolution import ONE_BY_ONE
from fedappeal.tasks.task import Split, Structure, Task

_MODEL = "model."
"""Before the names of a model's parameters in its `Objective`."""


class Objective(nn.Module):
    """A task's mean loss of a model, as a module."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, x: Structure, y: Structure) -> Tensor:
        """Return the mean loss on a minibatch."""
        return self._task.loss(self._task.forward(self.model, x), y)


class VmapForm:
    """The batched form by `torch.func.vmap`.

    Without the clients' masks dropout draws other noise for each client, from one generator.
    """

    name = "vmap"
    largest_batch = 20
    """More would push each other's activations out of the caches, and gain little."""
    one_size = True
    """The loss is a mean: examples cannot be left out of it."""

    def __init__(self, task: Task, module: nn.Module) -> None:
        """Take a task's loss and a model.

        Raises:
            NotBatchable: there is nothing to train.
        """
        self.trained: Sequence[str] = [name for name, p in module.named_parameters() if p.requires_grad]
        if not self.trained:
            raise NotBatchable("there is nothing to train")
        device = next(module.parameters()).device
        self.smallest_batch = 4 if device.type == "cpu" else 2
        # PyTorch says of each operation without a batching rule of its own that it is slow; `auto` measures that.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        self.objective = Objective(task, copy.deepcopy(module))
        if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
            _unroll_recurrent()
        if device.type in ONE_BY_ONE:
            for layer in self.objective.modules():
                if (client_by_client := _EACH_CLIENT.get(type(layer))) is not None:
                    layer.__class__ = client_by_client
        self.unused: Collection[str] = ()
        self._rates: dict[str, float] = {}
        """Dropout of each attention layer."""
        self._switch(True)
        loss = partial(VmapForm._loss, proxy(self))  # a cycle would hold the model's copy when the form is gone
        self._losses = vmap(loss, in_dims=(0, 0, None, 0, 0), randomness="different")

    def _loss(
        self, trained: list[Tensor], unlike: Parameters, shared: Mapping[str, Tensor], x: Any, y: Any
    ) -> Tensor:
        values = {**dict(zip(self.trained, trained, strict=True)), **unlike, **shared}
        loss: Tensor = functional_call(self.objective, {_MODEL + name: v for name, v in values.items()}, (x, y))
        return loss

    def add_gradient(self, clients: Cohort, batch: Split, weights: Tensor, target: Target, training: bool) -> None:
        """Add the gradients of all clients' mean losses by `torch.func.vmap`.

        ``weights`` are those of a mean.
        """
        values = {name: clients.trained[name].detach().requires_grad_() for name in self.trained}
        with torch.enable_grad():
            loss = self.loss(replace(clients, trained=values), batch, weights, training)
            # No model of these branches on its values: a parameter is used by all clients, or by none.
            of_clients = torch.autograd.grad(loss, list(values.values()), allow_unused=True)
        used = {name: g for name, g in zip(self.trained, of_clients, strict=True) if g is not None}
        arrays = [target.arrays[name] for name in used]
        if target.keep != 1:
            torch._foreach_mul_(arrays, target.keep)
        torch._foreach_add_(arrays, list(used.values()), alpha=target.alpha)
        self.unused = [name for name in self.trained if name not in used]

    def loss(self, clients: Cohort, batch: Split, weights: Tensor, training: bool = True) -> Tensor:
        """Return the sum of the clients' mean losses, which can be differentiated again; as of `add_gradient`."""
        if self.objective.training != training:
            self._switch(training)
        values = [clients.trained[name] for name in self.trained]
        losses: Tensor = self._losses(values, dict(clients.own), dict(clients.shared), batch.x, batch.y)
        return losses.sum()

    def _switch(self, training: bool) -> None:
        """Switch to training or evaluation mode.

        PyTorch's attention takes a way without derivatives in evaluation mode where its input needs none, and inside
        vmap no tensor says that it does: it stays in training mode, without dropout.
        """
        self.objective.train(training)
        for name, layer in self.objective.named_modules():
            if isinstance(layer, nn.MultiheadAttention):
                rate = self._rates.setdefault(name, layer.dropout)
                layer.training, layer.dropout = True, rate if training else 0.0
            elif isinstance(layer, nn.TransformerEncoderLayer):
                layer.training = True


@cache
def _unroll_recurrent() -> torch.library.Library:
    """Give vmap PyTorch's decompositions of recurrent layers, for which it has no rule; they last with the result."""
    from torch._decomp import decomposition_table

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        layer = getattr(torch.ops.aten, name).input
        library.impl(layer, decomposition_table[layer], "FuncTorchBatchedDecomposition")  # type: ignore[no-untyped-call]
    return library


class _EachClient(torch.autograd.Function):
    """A convolution that vmap calculates client by client.

    On a CPU grouped ones take three times as long.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, convolution: Any) -> Tensor:
        y: Tensor = convolution(x, weight, bias)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: autograd sees the operations that `vmap` calls."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None, convolution: Any
    ) -> tuple[Tensor, int]:
        """Return each client's convolution, the clients as first axis."""
        by_argument = [
            [argument] * info.batch_size if argument is None or axis is None else argument.unbind(axis)
            for argument, axis in zip((x, weight, bias), in_dims, strict=False)
        ]
        return torch.stack([convolution(*of_client) for of_client in zip(*by_argument, strict=True)]), 0


class _ClientByClient(nn.Module):
    """The convolution of the class that comes next, client by client."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolution = super()._conv_forward  # type: ignore[misc]
        y: Tensor = _EachClient.apply(input, weight, bias, convolution)
        return y


_CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_EACH_CLIENT = {kind: type(kind.__name__, (_ClientByClient, kind), {}) for kind in _CONVOLUTIONS}
