"""The convolution of many clients: one after another on a CPU, as one grouped convolution elsewhere."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedappeal.simulation.forms.batched import Parameters, Target

ONE_BY_ONE = {"cpu"}
"""Devices on which clients' convolutions are done one after another."""
SMALL_PATCH = 32
"""Most inputs of one output for which all patches, laid out, and one product beat a convolution on a CPU."""
_LAST = torch.channels_last
"""Order in memory in which oneDNN convolves fastest, and in which pooling runs along the channels."""

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of the inputs, the weights and the biases; None: not wanted."""


class Conv2d:
    """Convolution: one after another on a CPU, as one grouped convolution elsewhere.

    PyTorch's grouped convolutions take three times as long on a CPU as the same convolutions one by one. On a CPU the
    outputs have their channels last in memory, and so has the gradient of the inputs.
    """

    def __init__(self, name: str, module: nn.Conv2d) -> None:
        self._weight, self._bias = f"{name}weight", f"{name}bias" if module.bias is not None else ""
        self._groups = module.groups
        self._how = (list(module.stride), [int(p) for p in module.padding], list(module.dilation))
        plain = module.groups == 1 and tuple(module.dilation) == (1, 1)
        self._by_patches = plain and math.prod(module.weight.shape[1:]) <= SMALL_PATCH

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return the clients' convolutions, and keep the inputs for `backward`."""
        self._x = x
        weight, bias = parameters[self._weight], parameters.get(self._bias)
        if x.device.type in ONE_BY_ONE and self._by_patches:
            patches, shape = _patches(x, weight.shape[3:], *self._how[:2])
            self._patches = patches
            kernels = weight.flatten(2).transpose(1, 2).unsqueeze(1).expand(-1, x.shape[1], -1, -1).flatten(0, 1)
            y = torch.bmm(patches.transpose(1, 2), kernels).view(*x.shape[:2], *shape, weight.shape[1])
            if bias is not None:
                y.add_(bias.view(len(x), 1, 1, 1, -1))
            return y.permute(0, 1, 4, 2, 3)
        if x.device.type in ONE_BY_ONE:
            biases = [None] * len(x) if bias is None else list(bias)
            return _stack(
                functional.conv2d(a.contiguous(memory_format=_LAST), w, b, *self._how, self._groups)
                for a, w, b in zip(x, weight, biases, strict=True)
            )
        flat_bias = None if bias is None else bias.flatten()
        groups = len(x) * self._groups
        side_by_side = functional.conv2d(_channels(x), weight.flatten(0, 1), flat_bias, *self._how, groups)
        return _clients(side_by_side, len(x))

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient of the inputs; add those of weight and bias."""
        weight, x = parameters[self._weight], self._x
        clients, outputs = weight.shape[:2]
        del self._x
        wanted = [not first, True, bool(self._bias)]
        if x.device.type in ONE_BY_ONE and self._by_patches:
            below, of_weight, of_bias = self._backward_by_patches(grad, x, weight, first)
        elif x.device.type in ONE_BY_ONE:
            below, of_weight, of_bias = self._one_by_one(grad, x, weight, wanted)
        else:
            side_by_side = _channels(grad), _channels(x), weight.flatten(0, 1)
            below, of_weight, of_bias = self._backward(*side_by_side, clients, wanted)
            below = None if below is None else _clients(below, clients)
        assert of_weight is not None
        target.add(self._weight, of_weight.view_as(weight))
        if of_bias is not None:
            target.add(self._bias, of_bias.view(clients, outputs))
        return grad if below is None else below

    def _backward_by_patches(self, grad: Tensor, x: Tensor, weight: Tensor, first: bool) -> Gradients:
        of_output = grad.permute(0, 1, 3, 4, 2).reshape(-1, grad.shape[-2] * grad.shape[-1], weight.shape[1])
        products = torch.bmm(self._patches, of_output)
        del self._patches
        of_weight = products.view(len(x), -1, *products.shape[1:]).sum(1).transpose(1, 2).contiguous()
        of_bias = grad.sum((1, 3, 4)) if self._bias else None
        below = None if first else self._one_by_one(grad, x, weight, [True, False, False])[0]
        return below, of_weight, of_bias

    def _one_by_one(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Gradients:
        parts = [
            self._backward(g.contiguous(memory_format=_LAST), a.contiguous(memory_format=_LAST), w, 1, wanted)
            for g, a, w in zip(grad, x, weight, strict=True)
        ]
        below, of_weight, of_bias = zip(*parts, strict=True)
        return (
            _stack(below) if wanted[0] else None,
            torch.stack(of_weight) if wanted[1] else None,
            torch.stack(of_bias) if wanted[2] else None,
        )

    def _backward(self, grad: Tensor, x: Tensor, weight: Tensor, clients: int, wanted: Sequence[bool]) -> Gradients:
        how = [len(weight)], *self._how, False, [0, 0], clients * self._groups
        of_all: Gradients = torch.ops.aten.convolution_backward(grad, x, weight, *how, wanted)
        return of_all


def _stack(activations: Iterable[Tensor]) -> Tensor:
    """Return clients' activations as one tensor whose channels are last in memory."""
    return torch.stack([one.permute(0, 2, 3, 1) for one in activations]).permute(0, 1, 4, 2, 3)


def _patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, tuple[int, int]]:
    """Return each output's inputs, and the outputs' height and width.

    Shape ``(clients * batch, inputs, outputs)``.
    """
    x = functional.pad(x.flatten(0, 1), (padding[1], padding[1], padding[0], padding[0])).contiguous()
    height, width = ((x.shape[2 + i] - kernel[i]) // stride[i] + 1 for i in range(2))
    n, c, row, column = x.stride()
    windows = x.as_strided(
        (len(x), x.shape[1], *kernel, height, width), (n, c, row, column, row * stride[0], column * stride[1])
    )
    return windows.reshape(len(x), -1, height * width), (height, width)


def _channels(x: Tensor) -> Tensor:
    """Return the clients' channels after one another: ``(batch, clients * channels, height, width)``."""
    return x.transpose(0, 1).flatten(1, 2)


def _clients(x: Tensor, clients: int) -> Tensor:
    return x.reshape(len(x), clients, -1, *x.shape[2:]).transpose(0, 1)
