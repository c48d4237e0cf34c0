"""The papers' tables and figures as code: each prints ours beside theirs.

An experiment is chosen by name. A module may hold several, under one tuple ``EXPERIMENTS``; it is imported when one
of them is asked for, and needs neither torch nor matplotlib to be imported. `fedappeal.studies` is what they share;
`maxfl`, `adagd` and `fedalign` hold one paper each.
"""

import importlib
from typing import TYPE_CHECKING

from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import did_you_mean

if TYPE_CHECKING:
    from fedappeal.studies.experiment import Experiment

__all__ = ["experiment_names", "load_experiment"]

_MODULES = {
    "maxfl-table1": "maxfl.opt_out",
    "maxfl-table2": "maxfl.opt_out",
    "maxfl-table3": "maxfl.clusters",
    "maxfl-figure3": "maxfl.clusters",
    "maxfl-table4": "maxfl.clusters",
    "maxfl-table5": "maxfl.clusters",
    "maxfl-table7": "maxfl.clusters",
    "maxfl-figure1": "maxfl.appeal_accuracy",
    "maxfl-figure2": "maxfl.weights",
    "maxfl-figure4": "maxfl.mean",
    "maxfl-figure5": "maxfl.mean",
    "maxfl-figure6": "maxfl.losses",
    "maxfl-figure7": "maxfl.learning_rate",
    "maxfl-theorem31": "maxfl.convergence",
    "adagd-figure1": "adagd.separators",
    "adagd-figure2": "adagd.defections",
    "adagd-figure3": "adagd.precision",
    "adagd-figure5": "adagd.contours",
    "adagd-figure6": "adagd.separators",
    "adagd-figure7a": "adagd.retention",
    "adagd-figure7b": "adagd.steps",
    "adagd-figure8": "adagd.precision",
    "adagd-figure9": "adagd.precision",
    "adagd-theorem1": "adagd.guarantee",
    "fedalign-figure1": "fedalign",
    "fedalign-figure2": "fedalign",
    "fedalign-theorem1": "fedalign_bound",
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
        hint = did_you_mean(name, _MODULES, " ({})")
        raise ConfigError(f"experiment = '{name}' is not allowed: {', '.join(_MODULES)}{hint}")
    module = importlib.import_module(f"fedappeal.reproductions.{_MODULES[name]}")
    experiments: dict[str, Experiment] = {experiment.name: experiment for experiment in module.EXPERIMENTS}
    return experiments[name]
