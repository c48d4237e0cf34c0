"""The tables ``[tool.flwr.app.config]`` of pyproject.toml: what ``flwr run`` can override, with its default.

`python -m fedappeal.cli.reference` writes them; a test compares them with the file. Flower overrides only keys that
are there, and knows no "not set", so settings without a default are left out: the key ``set`` carries them.
"""

from typing import Any

import tomli_w

from fedappeal.core.plugins import Plugin, Registry
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.tasks import TASKS

_REGISTRIES: tuple[Registry[Any], ...] = (STRATEGIES, LOCAL_RULES, POLICIES, REQUIREMENTS, TASKS)


def config_tables() -> dict[str, Scalar | dict[str, Scalar]]:
    """Return the defaults of the general settings, and a table for each plug-in of fedappeal's that has settings."""
    defaults = ((name, plugin.Settings.parse({}).as_config()) for name, plugin in plugins_with_settings().items())
    return {**RunConfig.parse({}).as_config(), "set": "", **{name: table for name, table in defaults if table}}


def plugins_with_settings() -> dict[str, type[Plugin]]:
    """Return fedappeal's plug-ins that have settings, by name; a strategy's own rule shares the strategy's."""
    plugins: dict[str, type[Plugin]] = {}
    for registry in _REGISTRIES:
        for plugin in map(registry.load, registry.built_in):
            if plugin.Settings.by_key():
                plugins.setdefault(plugin.settings_name(), plugin)
    return plugins


def with_tables(pyproject: str) -> str:
    """Return the text of pyproject.toml with its tables as they are now."""
    tables = tomli_w.dumps({"tool": {"flwr": {"app": {"config": config_tables()}}}})
    before, _, rest = pyproject.partition("[tool.flwr.app.config]\n")
    return f"{before}{tables}\n{rest[rest.index('[tool.ruff]') :]}"
