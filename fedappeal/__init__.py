"""fedappeal: federated learning for volunteers, on Flower.

Names of the Python interface are imported when they are asked for: the command line loads neither torch nor Flower.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedappeal.system.versions import FEDAPPEAL

if TYPE_CHECKING:
    from fedappeal.api.run import FinishedRound as FinishedRound
    from fedappeal.api.run import Run as Run
    from fedappeal.api.runs import Runs as Runs
    from fedappeal.api.simulate import load as load
    from fedappeal.api.simulate import simulate as simulate
    from fedappeal.api.sweep import sweep as sweep
    from fedappeal.protocol.metric import Metric as Metric
    from fedappeal.settings.config import ConfigError as ConfigError
    from fedappeal.tasks.task import ClientData as ClientData
    from fedappeal.tasks.task import Split as Split
    from fedappeal.tasks.task import Task as Task
    from fedappeal.views.comparison.export import compare as compare

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

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'fedappeal' has no attribute '{name}'")
    return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
