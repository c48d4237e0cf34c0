"""Max pooling over windows that lie side by side."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedappeal.simulation.forms.batched import Parameters


class MaxPool2d:
    """Max pooling whose windows do not overlap.

    PyTorch's own goes through each window element by element on a CPU, unless the channels are last in memory. With
    channels in front, maxima of strided views take a fraction of that time.
    """

    def __init__(self, height: int, width: int) -> None:
        self._size = height, width

    def _views(self, x: Tensor) -> list[Tensor]:
        """Return each place of the windows, in PyTorch's order; shape ``(..., rows, columns)``."""
        height, width = self._size
        rows, columns = x.shape[-2] // height * height, x.shape[-1] // width * width
        return [x[..., i:rows:height, j:columns:width] for i in range(height) for j in range(width)]

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        self._x = x
        first, *others = self._views(x)
        if not first.numel():
            raise ValueError(f"windows of {self._size} do not fit into inputs of {tuple(x.shape[-2:])}")
        self._indices: Tensor | None = None
        if _channels_last(x):
            pooled, self._indices = torch.ops.aten.max_pool2d_with_indices(x.flatten(0, 1), self._size)
            maxima: Tensor = pooled.view(*x.shape[:2], *pooled.shape[1:])
            return maxima
        y = torch.maximum(first, others[0])
        for other in others[1:]:
            torch.maximum(y, other, out=y)
        self._y = y
        return y

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`. As in PyTorch the first of equal values has the gradient."""
        x = self._x
        del self._x
        if self._indices is not None:
            flat: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
                grad.flatten(0, 1), x.flatten(0, 1), self._size, self._size, (0, 0), (1, 1), False, self._indices
            )
            self._indices = None
            return flat.view(x.shape)
        below = torch.zeros_like(x)
        rest = grad.clone()
        for values, target in zip(self._views(x), self._views(below), strict=True):
            torch.mul(rest, values == self._y, out=target)
            rest -= target
        del self._y
        return below


def _channels_last(x: Tensor) -> bool:
    """Return whether ``(clients, batch, channels, height, width)`` on a CPU has its channels last in memory."""
    return x.device.type == "cpu" and x.ndim == 5 and x.stride(2) == 1 and x.shape[2] > 1


def max_pool2d(
    kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: Any = False, **others: Any
) -> MaxPool2d | None:
    """Return a batched layer for PyTorch's arguments; None for windows that overlap, leave gaps or stick out."""
    size = _pair(kernel_size)
    plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode and not others
    side_by_side = stride is None or stride == [] or _pair(stride) == size
    return MaxPool2d(*size) if plain and side_by_side and size[0] * size[1] > 1 else None


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values[0], values[-1]
