"""A model that is faster in large forward passes, over the very parameters of another."""

import copy
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn


class _OneDnnLinear(nn.Linear):
    """A linear layer by oneDNN, with the rectifier that comes after it where there is one."""

    _then = "none"

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, self._then, [], "")
        return y

    @classmethod
    def of(cls, layer: nn.Linear, then: str = "none") -> "_OneDnnLinear":
        """Return a layer with the same parameters."""
        fast = copy.copy(layer)
        fast.__class__ = cls
        assert isinstance(fast, cls)
        fast._then = then
        return fast


def is_pytorchs_own(model: nn.Module) -> bool:
    """Return whether a model is made of PyTorch's modules alone: what these do in evaluation mode is known."""
    return all(type(module).__module__.startswith("torch.nn.modules.") for module in model.modules())


def for_inference(model: nn.Module) -> nn.Module:
    """Return a model over the same parameters that is faster in large forward passes.

    PyTorch multiplies float32 matrices on a CPU by MKL, which does not use AMD's vectors in full; oneDNN does, and
    rectifies while it writes. PyTorch's compiler calls the same operator for the same reason.

    Args:
        model: in the mode in which the result is to be; where it has no linear layer in float32 on a CPU, it is the
            result.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    plain = all(layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32 for layer in layers)
    if not layers or not plain or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return model
    shared: dict[int, object] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    shared |= {id(layer): _OneDnnLinear.of(layer) for layer in layers}
    fast = copy.deepcopy(model, shared)
    if is_pytorchs_own(model):  # code of a user's may call a listed layer without the next one
        for layers_in_turn, i in _rectified(fast):
            layer = layers_in_turn[i]
            assert isinstance(layer, nn.Linear)
            layers_in_turn[i], layers_in_turn[i + 1] = _OneDnnLinear.of(layer, "relu"), nn.Identity()
    return fast


def _rectified(model: nn.Module) -> Iterator[tuple[nn.Sequential, int]]:
    """Yield where a rectifier follows a linear layer, neither of which has hooks."""
    for module in list(model.modules()):
        if type(module) is not nn.Sequential:
            continue
        for i in range(len(module) - 1):
            pair = module[i], module[i + 1]
            hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in pair)
            if tuple(map(type, pair)) == (_OneDnnLinear, nn.ReLU) and not hooked:
                yield module, i
