"""Batched layers: parameters and activations of many clients carry a leading axis of clients.

Activations have shape ``(clients, batch, ...)``. Forward and backward are written out, so that a gradient can be
added straight into the parameter it belongs to (fused SGD) and no graph is built: autograd over the same batched
layers takes about half as long again. Layers without parameters that have no written-out backward use autograd for
themselves alone.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from fedappeal.simulation.forms.batched import Parameters
from fedappeal.simulation.forms.convolution import Conv2d
from fedappeal.simulation.forms.pooling import max_pool2d


class Layer(Protocol):
    """One layer of all clients. ``backward`` belongs to the latest ``forward``.

    Activations of images may have their channels last in memory: their shape is the same, and each layer leaves the
    order to those before it.
    """

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return activations of shape ``(clients, batch, ...)``; ``x`` stays as it is."""

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """Add ``alpha`` times the parameters' gradients to ``into``; return the gradient of the input.

        Args:
            grad: gradient of the output; may be changed in place.
            parameters: as in ``forward``.
            into: what the gradients are added to; may be the parameters themselves.
            alpha: factor.
            first: whether the gradient of the input is not needed; anything may be returned then.
        """


class Linear:
    """``y = x W^T + b`` as one batched product."""

    def __init__(self, name: str, module: nn.Linear) -> None:
        self._weight, self._bias = f"{name}weight", f"{name}bias" if module.bias is not None else ""

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        weight = parameters[self._weight].transpose(1, 2)
        self._shape = x.shape
        self._x = x.flatten(1, -2)
        if self._bias:
            y = torch.baddbmm(parameters[self._bias].unsqueeze(1), self._x, weight)
        else:
            y = torch.bmm(self._x, weight)
        return y.view(*self._shape[:-1], y.shape[-1])

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`."""
        grad = grad.reshape(grad.shape[0], -1, grad.shape[-1])
        below = grad if first else torch.bmm(grad, parameters[self._weight]).view(self._shape)
        into[self._weight].baddbmm_(grad.transpose(1, 2), self._x, alpha=alpha)
        if self._bias:
            into[self._bias].add_(grad.sum(1), alpha=alpha)
        del self._x
        return below


class LayerNorm:
    """Normalisation of each example, with each client's own scale and shift."""

    def __init__(self, name: str, module: nn.LayerNorm) -> None:
        self._shape, self._eps = list(module.normalized_shape), module.eps
        self._weight = f"{name}weight" if module.weight is not None else ""
        self._bias = f"{name}bias" if module.bias is not None else ""

    def _over(self, parameter: Tensor, x: Tensor) -> Tensor:
        return parameter.view(parameter.shape[0], *[1] * (x.ndim - parameter.ndim), *self._shape)

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        self._x = x
        y, self._mean, self._rstd = torch.native_layer_norm(x, self._shape, None, None, self._eps)
        self._normal = y
        if self._weight:
            y = y * self._over(parameters[self._weight], x)
        if self._bias:
            y = y + self._over(parameters[self._bias], x)
        return y

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`."""
        between = tuple(range(1, grad.ndim - len(self._shape)))
        if self._bias:
            into[self._bias].add_(grad.sum(between), alpha=alpha)
        if self._weight:
            of_weight = (grad * self._normal).sum(between)
            grad = grad * self._over(parameters[self._weight], grad)
            into[self._weight].add_(of_weight, alpha=alpha)
        below: Tensor = torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(), self._x, self._shape, self._mean, self._rstd, None, None, [True, False, False]
        )[0]
        return below


class ReLU:
    """Rectifier. Not in place: the layer before may need its output."""

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        self._y = x.relu()
        return self._y

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`."""
        return torch.ops.aten.threshold_backward(grad, self._y, 0)  # type: ignore[no-any-return]


class Dropout:
    """Inverted dropout; draws from torch's generator, which the caller seeds."""

    def __init__(self, rate: float) -> None:
        self._keep = 1.0 - rate
        self._mask: Tensor | None = None

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        self._mask = None
        if not training or self._keep == 1.0:
            return x
        self._mask = torch.rand_like(x).lt_(self._keep)  # half the time of `bernoulli_`
        if self._keep:
            self._mask.div_(self._keep)
        return x * self._mask

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`."""
        return grad if self._mask is None else grad.mul_(self._mask)


class Flatten:
    """Flattening of each example; ``end`` counts from the last axis, as in PyTorch."""

    def __init__(self, module: nn.Flatten) -> None:
        self._start = module.start_dim + (1 if module.start_dim >= 0 else 0)
        self._end = module.end_dim + (1 if module.end_dim >= 0 else 0)

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        self._shape = x.shape
        return x.flatten(self._start, self._end)

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`."""
        return grad.reshape(self._shape)


class View:
    """Another shape of each example."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._to = tuple(shape)

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        self._shape = x.shape
        return x.reshape(*x.shape[:2], *self._to)

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`."""
        return grad.reshape(self._shape)


class EachExample:
    """What has no parameters and treats each example alone, like pooling. Autograd differentiates it."""

    def __init__(self, module: Callable[[Tensor], Tensor]) -> None:
        self._module = module

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """See `Layer`."""
        with torch.enable_grad():
            self._x = x.detach().requires_grad_()
            y: Tensor = self._module(self._x.flatten(0, 1))
            self._y = y.view(*x.shape[:2], *y.shape[1:])
        return self._y.detach()

    def backward(self, grad: Tensor, parameters: Parameters, into: Parameters, alpha: float, first: bool) -> Tensor:
        """See `Layer`."""
        below: Tensor = torch.autograd.grad(self._y, self._x, grad)[0]
        return below


_EACH_EXAMPLE = (
    *(nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.SiLU, nn.Mish, nn.Softplus, nn.ReLU6),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softsign, nn.Identity),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)


def batched_layer(name: str, module: nn.Module) -> Layer | None:
    """Return the batched layer of one module without children, or None where there is none.

    Args:
        name: prefix of its parameters' names, empty or ending with a dot.
        module: of exactly one of the known types; a subclass may compute something else.
    """
    kind = type(module)
    if kind is nn.Linear and isinstance(module, nn.Linear):
        return Linear(name, module)
    if kind is nn.Conv2d and isinstance(module, nn.Conv2d):
        plain = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return Conv2d(name, module) if plain else None
    if kind is nn.LayerNorm and isinstance(module, nn.LayerNorm):
        return LayerNorm(name, module)
    if kind is nn.Flatten and isinstance(module, nn.Flatten):
        return Flatten(module) if module.start_dim != 0 else None
    if kind is nn.Dropout and isinstance(module, nn.Dropout):
        return Dropout(module.p)
    if kind is nn.ReLU:
        return ReLU()
    if kind is nn.MaxPool2d and isinstance(module, nn.MaxPool2d) and not module.return_indices:
        how = module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode
        if (pooling := max_pool2d(*how)) is not None:
            return pooling
    if kind in _EACH_EXAMPLE and not getattr(module, "return_indices", False):
        return EachExample(module)
    return None


LossGradient = Callable[[Tensor, Tensor], Tensor]
"""Per-example gradient of the loss by the logits ``(n, C)``, given labels ``(n,)``."""


def cross_entropy_gradient(logits: Tensor, y: Tensor) -> Tensor:
    """Return ``softmax(logits) - onehot(y)``, shape ``(n, C)``: the gradient of cross-entropy, example by example."""
    gradient = logits.softmax(-1)
    return gradient.scatter_add_(1, y.unsqueeze(1), gradient.new_full((1, 1), -1.0).expand(len(y), 1))
