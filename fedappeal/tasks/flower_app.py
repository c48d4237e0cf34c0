"""A Flower app as a task.

Its model is arrays by name; data and training are the app's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ConfigDict

from fedappeal.core.places import reason
from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.examples import ClientData
from fedappeal.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn


def is_client_app(value: object) -> bool:
    """Whether an object is a Flower ClientApp; Flower is not loaded for it."""
    return any(f"{kind.__module__}.{kind.__name__}".endswith(".ClientApp") for kind in type(value).__mro__)


class FlowerApp(Task):
    """A federation of a Flower app's clients, in a simulation; settings under ``app.`` are its configuration.

    Args:
        settings: the task's settings; ``model`` names what returns w_0.
        data_dir: not used.
        app: the ClientApp.
        initial: returns w_0: an ArrayRecord, a dict or list of arrays, a torch module or its state.
    """

    class Settings(PluginSettings):
        """The app's configuration: any keys."""

        model_config = ConfigDict(extra="allow")

    name = "app"
    auto_partition = "the app's"
    app: Any

    def __init__(self, settings: TaskSettings, data_dir: Path | None, app: Any, initial: Any) -> None:
        super().__init__(settings, data_dir)
        self.app, self._initial = app, initial

    @property
    def config(self) -> Mapping[str, Any]:
        """What the app finds in messages and in its run's configuration."""
        return dict(self.settings.section(self.name))

    def initial_arrays(self) -> Arrays:
        """Return w_0 by name, in the app's order.

        Raises:
            ConfigError: what ``model`` names returned something else.
        """
        try:
            made = self._initial()
        except Exception as error:
            raise ConfigError(f"model = '{self.settings.model}' failed: {reason(error)}") from error
        made = made.state_dict() if hasattr(made, "state_dict") else made
        named = made if hasattr(made, "items") else {str(n): a for n, a in enumerate(made or ())}
        arrays = {name: np.asarray(a.numpy() if hasattr(a, "numpy") else a) for name, a in named.items()}
        if not arrays or any(a.dtype.kind not in "biuf" for a in arrays.values()):
            kind = type(made).__name__
            raise ConfigError(
                f"model = '{self.settings.model}' is not allowed: it returned {kind}, not an ArrayRecord, arrays or "
                "a torch module"
            )
        return arrays

    def initial_model(self, seed: int) -> "nn.Module":
        """Raise: the app alone knows its model.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a Flower app's model is not fedappeal's to make: only the app can use it")

    def load(self, client: int) -> ClientData:
        """Raise: the app alone loads its data.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a Flower app's data are not fedappeal's to load")
