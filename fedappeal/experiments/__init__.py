"""The papers' tables and figures as code: each prints ours beside theirs.

An experiment is chosen by name. A module may hold several, under one tuple ``EXPERIMENTS``; it is imported when one
of them is asked for, and needs neither torch nor matplotlib to be imported.
"""

import difflib
import importlib
from typing import TYPE_CHECKING

from fedappeal.protocol.config import ConfigError

if TYPE_CHECKING:
    from fedappeal.experiments.experiment import Experiment

__all__ = ["experiment_names", "load_experiment"]

_MODULES = {
    "maxfl-table1": "maxfl_opt_out",
    "maxfl-table2": "maxfl_byzantine",
    "maxfl-table3": "maxfl_clusters",
    "maxfl-figure3": "maxfl_clusters",
    "maxfl-table4": "maxfl_tuning",
    "maxfl-table5": "maxfl_warmup",
    "maxfl-table7": "maxfl_fairness",
    "maxfl-figure4": "maxfl_mean",
    "maxfl-figure5": "maxfl_mean",
    "maxfl-figure6": "maxfl_losses",
    "adagd-figure2": "adagd_defections",
    "adagd-figure3": "adagd_precision",
    "adagd-figure5": "adagd_contours",
    "adagd-figure7a": "adagd_retention",
    "adagd-figure7b": "adagd_steps",
    "fedalign-figure1": "fedalign_benchmarks",
    "fedalign-figure2": "fedalign_synthetic",
    "volunteers": "volunteers",
}
"""Name -> module in this folder, in the order in which they are listed."""


def experiment_names() -> list[str]:
    """Return the names of all experiments."""
    return list(_MODULES)


def load_experiment(name: str) -> "Experiment":
    """Return an experiment.

    Raises:
        ConfigError: there is none of that name; names a near one.
    """
    if name not in _MODULES:
        near = difflib.get_close_matches(name, _MODULES, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise ConfigError(f"experiment = '{name}' is not allowed: {', '.join(_MODULES)}{hint}")
    module = importlib.import_module(f"fedappeal.experiments.{_MODULES[name]}")
    found: dict[str, Experiment] = {experiment.name: experiment for experiment in module.EXPERIMENTS}
    return found[name]
