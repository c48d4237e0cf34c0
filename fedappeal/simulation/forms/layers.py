"""Batched layers: parameters and activations of many clients carry a leading axis of clients.

Activations have shape ``(clients, batch, ...)``. Forward and backward are written out, so that a gradient can be
added straight into the parameter it belongs to (fused SGD) and no graph is built: autograd over the same batched
layers takes about half as long again. Layers without parameters that have no written-out backward use autograd for
themselves alone.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from client.training.noise import active_masks
from fedappeal.simulation.forms.batched import Parameters, Target
from fedappeal.simulation.forms.convolution import Conv2d


class Layer(Protocol):
    """One layer of all clients. ``backward`` belongs to the latest ``forward``; autograd can take its place.

    Activations of images may have their channels last in memory: their shape is the same, and each layer leaves the
    order to those before it.
    """

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return activations of shape ``(clients, batch, ...)``; ``x`` stays as it is."""

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Add the parameters' gradients to their target; return the gradient of the input.

        Args:
            grad: gradient of the output; may be changed in place.
            parameters: as in ``forward``.
            target: where the gradients are added; may hold the parameters themselves.
            first: whether the gradient of the input is not needed; anything may be returned then.
        """


class Product(torch.autograd.Function):
    """``x W^T`` of all clients; a gradient of autograd's own would have W's axes the other way round in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return the products."""
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the gradients, which can be differentiated again."""
        x, weight = ctx.saved_tensors
        return torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None, torch.bmm(grad.transpose(1, 2), x)


class Linear:
    """``y = x W^T + b`` as one batched product."""

    def __init__(self, name: str, module: nn.Linear) -> None:
        self._weight, self._bias = f"{name}weight", f"{name}bias" if module.bias is not None else ""

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return the clients' matrix products, and keep the inputs for `backward`."""
        weight = parameters[self._weight].transpose(1, 2)
        self._shape = x.shape
        self._x = x.flatten(1, -2)
        y: Tensor
        if parameters[self._weight].requires_grad:
            y = Product.apply(self._x, parameters[self._weight])
            y = y.add_(parameters[self._bias].unsqueeze(1)) if self._bias else y
        elif self._bias:
            y = torch.baddbmm(parameters[self._bias].unsqueeze(1), self._x, weight)
        else:
            y = torch.bmm(self._x, weight)
        return y.view(*self._shape[:-1], y.shape[-1])

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient of the inputs; add those of weight and bias."""
        grad = grad.reshape(grad.shape[0], -1, grad.shape[-1])
        below = grad if first else torch.bmm(grad, parameters[self._weight]).view(self._shape)
        target.add_product(self._weight, grad.transpose(1, 2), self._x)
        if self._bias:
            target.add(self._bias, grad.sum(1))
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
        """Return the normalised inputs, and keep their statistics for `backward`."""
        self._x = x
        y, self._mean, self._rstd = torch.native_layer_norm(x, self._shape, None, None, self._eps)
        self._normal = y
        if self._weight:
            y = y * self._over(parameters[self._weight], x)
        if self._bias:
            y = y + self._over(parameters[self._bias], x)
        return y

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient of the inputs; add those of weight and bias."""
        between = tuple(range(1, grad.ndim - len(self._shape)))
        if self._bias:
            target.add(self._bias, grad.sum(between))
        if self._weight:
            of_weight = (grad * self._normal).sum(between)
            grad = grad * self._over(parameters[self._weight], grad)
            target.add(self._weight, of_weight)
        below: Tensor = torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(), self._x, self._shape, self._mean, self._rstd, None, None, [True, False, False]
        )[0]
        return below


class ReLU:
    """Rectifier. Not in place: the layer before may need its output."""

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return the rectified inputs, and keep them for `backward`."""
        self._y = x.relu()
        return self._y

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient where the output was positive, 0 elsewhere."""
        return torch.ops.aten.threshold_backward(grad, self._y, 0)  # type: ignore[no-any-return]


class Dropout:
    """Inverted dropout, by the clients' masks; where there are none, from torch's generator."""

    def __init__(self, rate: float) -> None:
        self._keep = 1.0 - rate
        self._mask: Tensor | None = None

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return the inputs times a mask while training, unchanged otherwise."""
        self._mask = None
        if not training or self._keep == 1.0:
            return x
        masks = active_masks()
        if masks is not None and self._keep:
            self._mask = masks.scaled(x.shape, 1.0 - self._keep, x.device)
            return x * self._mask
        self._mask = torch.rand_like(x).lt_(self._keep)  # half the time of `bernoulli_`
        if self._keep:
            self._mask.div_(self._keep)
        return x * self._mask

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient times the forward pass's mask."""
        return grad if self._mask is None else grad.mul_(self._mask)


class Reshape:
    """Another shape of each example, as a function of all clients' activations gives it."""

    def __init__(self, reshape: Callable[[Tensor], Tensor]) -> None:
        self._reshape = reshape

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return the inputs in another shape, and keep theirs for `backward`."""
        self._shape = x.shape
        return self._reshape(x)

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient in the inputs' shape."""
        return grad.reshape(self._shape)


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
        """Return each window's maximum, and keep the inputs for `backward`."""
        self._x = x
        first, *others = self._views(x)
        if not first.numel():
            raise ValueError(f"windows of {self._size} do not fit into inputs of {tuple(x.shape[-2:])}")
        if x.requires_grad:
            largest: Tensor = functional.max_pool2d(x.flatten(0, 1), self._size)
            return largest.view(*x.shape[:2], *largest.shape[1:])
        self._indices: Tensor | None = None
        # The channels of (clients, batch, channels, height, width) may be last in memory.
        if x.device.type == "cpu" and x.ndim == 5 and x.stride(2) == 1 and x.shape[2] > 1:
            pooled, self._indices = torch.ops.aten.max_pool2d_with_indices(x.flatten(0, 1), self._size)
            maxima: Tensor = pooled.view(*x.shape[:2], *pooled.shape[1:])
            return maxima
        y = torch.maximum(first, others[0])
        for other in others[1:]:
            torch.maximum(y, other, out=y)
        self._y = y
        return y

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient at each window's first maximum, as PyTorch does."""
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
        for values, of_values in zip(self._views(x), self._views(below), strict=True):
            torch.mul(rest, values == self._y, out=of_values)
            rest -= of_values
        del self._y
        return below


def max_pool2d(
    kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> MaxPool2d | None:
    """Return a batched layer for PyTorch's arguments; None if windows do not tile.

    That is where windows overlap, leave gaps or stick out.
    """
    size = _pair(kernel_size)
    plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode
    side_by_side = stride is None or stride == [] or _pair(stride) == size
    return MaxPool2d(*size) if plain and side_by_side and size[0] * size[1] > 1 else None


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values[0], values[-1]


class EachExample:
    """A layer without parameters that treats each example alone, like pooling.

    Autograd differentiates it.
    """

    def __init__(self, module: Callable[[Tensor], Tensor]) -> None:
        self._module = module
        if getattr(module, "inplace", False):  # autograd differentiates by the input
            self._module = copy.copy(module)
            vars(self._module)["inplace"] = False

    def forward(self, x: Tensor, parameters: Parameters, training: bool) -> Tensor:
        """Return the outputs of a module that treats each example by itself."""
        with torch.enable_grad():
            self._x = x if x.requires_grad else x.detach().requires_grad_()
            y: Tensor = self._module(self._x.flatten(0, 1))
            self._y = y.view(*x.shape[:2], *y.shape[1:])
        return self._y if x.requires_grad else self._y.detach()

    def backward(self, grad: Tensor, parameters: Parameters, target: Target, first: bool) -> Tensor:
        """Return the gradient of the inputs by PyTorch's autograd."""
        below: Tensor = torch.autograd.grad(self._y, self._x, grad)[0]
        return below


EACH_EXAMPLE = (
    *(nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.SiLU, nn.Mish, nn.Softplus, nn.ReLU6),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softsign, nn.Identity),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_altered(module: nn.Module) -> bool:
    """Whether a module has hooks, or a forward pass of its own, beside what its class says."""
    return "forward" in vars(module) or any(getattr(module, hooks) for hooks in _HOOKS)


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
        # Axes count with the clients' in front, or from the last one.
        start, end = (axis + 1 if axis >= 0 else axis for axis in (module.start_dim, module.end_dim))
        return Reshape(lambda x: x.flatten(start, end)) if start != 1 else None
    if kind is nn.Dropout and isinstance(module, nn.Dropout):
        return Dropout(module.p)
    if kind is nn.ReLU:
        return ReLU()
    if kind is nn.MaxPool2d and isinstance(module, nn.MaxPool2d) and not module.return_indices:
        how = module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode
        return max_pool2d(*how) or EachExample(module)
    if kind in EACH_EXAMPLE and not getattr(module, "return_indices", False):
        return EachExample(module)
    return None
