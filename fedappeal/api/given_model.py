"""A program's own model: a class, a function or an instance, as the model from which a run starts."""

import ast
import copy
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.models import MODELS, build, seeded

WAYS = f"a torch.nn.Module, its class, a function that makes one, or {', '.join(MODELS)}"


@dataclass(frozen=True)
class GivenModel:
    """What makes a run's initial model.

    Attributes:
        source: an instance, whose weights are w_0; a class or a function, called with no arguments; or the name of a
            model of fedappeal.
        input_shape: shape of one example, for a named model.
        num_classes: number of its labels.
    """

    source: Any
    input_shape: tuple[int, ...] = ()
    num_classes: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            if self.source not in MODELS:
                raise ConfigError(f"model = {self.source!r} is not allowed: {WAYS}")
            if not self.input_shape or not self.num_classes:
                raise ConfigError(
                    f"model = {self.source!r} is not allowed: it classifies examples of one shape; give a "
                    "torch.nn.Module of your own"
                )
        elif not isinstance(self.source, nn.Module) and not callable(self.source):
            raise ConfigError(f"model = {self.source!r} is not allowed: {WAYS}")

    @property
    def name(self) -> str:
        """What the model is called."""
        if isinstance(self.source, str):
            return self.source
        named = type(self.source) if isinstance(self.source, nn.Module) else self.source
        return str(getattr(named, "__qualname__", type(named).__name__))

    def initial(self, seed: int) -> nn.Module:
        """Return w_0 on the CPU, a pure function of the seed.

        Raises:
            ConfigError: what was called failed, or made no module.
        """
        if isinstance(self.source, nn.Module):
            return copy.deepcopy(self.source).cpu()
        if isinstance(self.source, str):
            with seeded(seed):
                return build(self.source, self.input_shape, self.num_classes)
        make: Callable[[], Any] = self.source
        try:
            with seeded(seed):
                made = make()
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"model = {self.name} failed: {reason}; it is called with no arguments") from error
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"model = {self.name} is not allowed: it made {type(made).__name__}, no torch.nn.Module"
            )
        return copy.deepcopy(made).cpu()  # a function may return the same one again

    def fingerprint(self, seed: int) -> str:
        """Return a hash of the model's layout and its code, of an instance also its weights; 16 hex digits."""
        module = self.initial(seed)
        arrays = {name: t.detach().cpu() for name, t in module.state_dict().items()}
        digest = hashlib.blake2b(digest_size=8)
        layout = [(name, tuple(t.shape), str(t.dtype)) for name, t in sorted(arrays.items())]
        digest.update(repr((layout, _code(type(module)))).encode())
        if isinstance(self.source, nn.Module):
            for name in sorted(arrays):
                digest.update(arrays[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _code(kind: type) -> str:
    """Return a class's name and its code without comments and layout; the name alone where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return kind.__qualname__
    return f"{kind.__qualname__} {ast.dump(tree)}"
