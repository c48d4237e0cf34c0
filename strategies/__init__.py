"""The algorithms, server and client side: one file or folder each, on `strategies.rounds`.

A name is imported when it is first asked for.
"""

import importlib
from typing import Any

from fedappeal.core.registry import STRATEGIES

_PATHS = (
    *STRATEGIES.built_in.values(),
    "strategies.maxfl:appeal_weight",
    "strategies.rounds.reply:Refused",
    "strategies.rounds.strategy:StrategySettings",
    "strategies.rounds.round:Hooks",
    "strategies.rounds.round:RoundRecord",
    "strategies.rounds.strategy:Strategy",
    "strategies.rounds.strategy:rounds_of",
)
_MODULES = {name: module for module, _, name in (path.partition(":") for path in _PATHS)}

__all__ = sorted(_MODULES)  # a list of the registry's names


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'strategies' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)
