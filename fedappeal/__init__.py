"""fedappeal: federated learning for volunteers, on Flower.

Names of the Python interface are imported when they are asked for: the command line loads neither torch nor Flower.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedappeal.system.versions import FEDAPPEAL

if TYPE_CHECKING:
    from fedappeal.api.run import FinishedRound, Run
    from fedappeal.api.runs import Runs
    from fedappeal.api.simulate import load, simulate
    from fedappeal.api.sweep import sweep
    from fedappeal.protocol.metric import Metric
    from fedappeal.settings.config import ConfigError
    from fedappeal.tasks.task import ClientData, Split, Task
    from fedappeal.views.comparison.export import compare

__version__ = FEDAPPEAL

_NAMES = {
    "ClientData": "fedappeal.tasks.examples",
    "ConfigError": "fedappeal.settings.config",
    "FinishedRound": "fedappeal.api.run",
    "Metric": "fedappeal.protocol.metric",
    "Run": "fedappeal.api.run",
    "Runs": "fedappeal.api.runs",
    "Split": "fedappeal.tasks.examples",
    "Task": "fedappeal.tasks.task",
    "compare": "fedappeal.views.comparison.export",
    "load": "fedappeal.api.simulate",
    "simulate": "fedappeal.api.simulate",
    "sweep": "fedappeal.api.sweep",
}

__all__ = [
    "ClientData",
    "ConfigError",
    "FinishedRound",
    "Metric",
    "Run",
    "Runs",
    "Split",
    "Task",
    "compare",
    "load",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'fedappeal' has no attribute '{name}'")
    return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
