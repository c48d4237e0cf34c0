"""How large a task's model is, before it is built."""

import importlib
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedappeal.core.places import reason
from fedappeal.core.plugins import is_ours
from fedappeal.settings.config import ConfigError
from fedappeal.tasks import is_own_model
from fedappeal.tasks.share import parts_of, share_of
from fedappeal.tasks.task import Task

_READ = (torch.arange, torch.linspace, torch.tensor)
"""What makes tables that a model may read while it is built, as RegNet its widths."""

MOST_CALLS = 100_000
"""Calls of PyTorch's in which a model is built: some layers in the millions take no memory, but hours."""


@dataclass(frozen=True)
class ModelSize:
    """Bytes of a model.

    Attributes:
        whole: of all parameters and buffers.
        shared: of those that travel.
    """

    whole: int
    shared: int

    @classmethod
    def of(cls, model: nn.Module, share: str) -> Self:
        """Return the size of a model; its tensors may be on any device."""
        tensors, shared = model.state_dict(keep_vars=True), parts_of(model, share).shared
        whole = {id(t): t.nbytes for t in (*model.parameters(), *model.buffers())}
        return cls(sum(whole.values()), sum(tensors[name].nbytes for name in shared))


def size_before(task: Task, seed: int) -> ModelSize | None:
    """Return the size of a task's initial model, built without memory.

    On PyTorch's device ``meta``.

    None for code that does not come with fedappeal: it may keep what it makes, or read the values.

    Raises:
        ConfigError: the model cannot be built.
    """
    if not is_ours(type(task)) or is_own_model(task.settings.model):
        return None
    importlib.import_module("torch._meta_registrations")  # left out by `import_torch_without_compiler`
    try:
        with torch.device("meta"), _TablesOnCPU():
            return ModelSize.of(task.initial_model(seed), share_of(task))
    except ConfigError:
        raise
    except Exception as error:
        name = task.settings.model
        raise ConfigError(f"model = '{name}' is not allowed: its size cannot be told ({reason(error)})") from None


class _TablesOnCPU(TorchFunctionMode):
    """Keeps small tables on the CPU while all else is on another device.

    It ends what makes too many tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left = MOST_CALLS

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError(f"it is built in more than {MOST_CALLS:,} steps")
        kwargs = dict(kwargs or {})
        if function in _READ:
            kwargs.setdefault("device", "cpu")
        return function(*args, **kwargs)
