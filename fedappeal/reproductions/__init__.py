"""The papers' tables and figures: each prints ours beside theirs.

An experiment is a TOML file, ``maxfl/table1.toml`` for ``maxfl-table1``; `description` says what it holds. What it
computes is a function of a module beside it. Neither torch nor matplotlib is needed to read one. `fedappeal.studies`
is what they share.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import did_you_mean

if TYPE_CHECKING:
    from fedappeal.studies.experiment import Experiment

__all__ = ["experiment_names", "load_experiment"]

_FOLDER = Path(__file__).parent


def experiment_names() -> list[str]:
    """Return the names of all experiments."""
    names: list[str] = tomllib.loads((_FOLDER / "experiments.toml").read_text("utf-8"))["names"]
    return names


@cache
def load_experiment(name: str) -> "Experiment":
    """Return an experiment.

    Raises:
        ConfigError: there is none of that name, with a near one; or its file is not allowed.
    """
    from fedappeal.reproductions.description import read_experiment

    if name not in (names := experiment_names()):
        raise ConfigError(
            f"experiment = '{name}' is not allowed: {', '.join(names)}{did_you_mean(name, names, ' ({})')}"
        )
    return read_experiment(_FOLDER / f"{name.replace('-', '/', 1)}.toml", name)
