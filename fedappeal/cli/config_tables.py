"""The tables ``[tool.flwr.app.config]`` of pyproject.toml: what ``flwr run`` can override, with its default.

    python -m fedappeal.cli.config_tables

prints them; a test compares them with the file. Flower overrides only keys that are there, and knows no "not set", so
settings without a default are left out: the key ``set`` carries them.
"""

from collections.abc import Iterator
from typing import Any

import tomli_w

from fedappeal.core.plugins import Registry
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.tasks import TASKS

_REGISTRIES: tuple[Registry[Any], ...] = (STRATEGIES, LOCAL_RULES, POLICIES, REQUIREMENTS, TASKS)


def config_tables() -> dict[str, Scalar | dict[str, Scalar]]:
    """Return the defaults of the general settings, and a table for each plug-in of fedappeal's that has settings."""
    return {**RunConfig.parse({}).as_config(), "set": "", **dict(_plugin_tables())}


def _plugin_tables() -> Iterator[tuple[str, dict[str, Scalar]]]:
    for registry in _REGISTRIES:
        for name in registry.built_in:
            plugin = registry.load(name)
            # A rule of a strategy shares its settings, which stand in the strategy's table.
            if getattr(plugin, "section", "") in ("", name) and (defaults := plugin.Settings.parse({}).as_config()):
                yield name, defaults


def main() -> None:
    """Print the tables as TOML."""
    print(tomli_w.dumps({"tool": {"flwr": {"app": {"config": config_tables()}}}}), end="")


if __name__ == "__main__":
    main()
