"""A device without float64, such as Apple's GPUs, on the CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WithoutFloat64(TorchFunctionMode):
    """Refuses each float64 result, as MPS does, but those of what was copied to the host."""

    def __init__(self) -> None:
        super().__init__()
        self._on_host: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor):
            return result
        made_on_host = func in (torch.from_numpy, torch.tensor, Tensor.cpu)
        if made_on_host or any(id(value) in self._on_host for value in args):
            self._on_host[id(result)] = result
        elif result.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return result
