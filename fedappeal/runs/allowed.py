"""The code that a run's folder names, and the options of a command that allow it."""

import shlex
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from client.participation.behaviour import Mixture
from fedappeal.core.plugins import Allowed, allow_options, runs_only_with
from fedappeal.core.registry import REGISTRIES
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import TASKS
from server.build import NOTHING_GIVEN, Given, named_plugins


def check_allowed(config: RunConfig, path: Path, allow: Iterable[str], given: Given = NOTHING_GIVEN) -> None:
    """Check that a call allows the code that a run's folder names; nothing is imported.

    Args:
        config: the run's settings.
        path: its folder.
        allow: packages; ``.``: the current folder is searched for them.
        given: objects in place of names.

    Raises:
        ConfigError: one line: what the run names, and the options that allow it.
    """
    if missing := _not_allowed(config, allow, given):
        whose = " and ".join(f"{kind} '{name}'" for kind, name, _ in missing)
        raise ConfigError(f"'{path}' holds a run of {whose}: {runs_only_with({*chain(*(m for *_, m in missing))})}")


def resume_command(config: RunConfig, path: Path | str, *options: str) -> str:
    """Return the command that continues a run, with the options that allow the code which its settings name.

    Args:
        config: the run's settings.
        path: its folder.
        options: further ones.
    """
    allow = allow_options(chain(*(lacking for *_, lacking in _not_allowed(config, (), NOTHING_GIVEN))))
    return shlex.join(["fedappeal", "resume", str(path), *options, *allow])


def _not_allowed(config: RunConfig, allow: Iterable[str], given: Given) -> list[tuple[str, str, list[str]]]:
    """Return kind and name of each plug-in that a call does not allow, and what the call would have to allow."""
    allowed, registries = Allowed.of(allow, by_call=True), (*REGISTRIES, TASKS)
    names = named_plugins(config, given, Mixture.of_run(config, "always").parts)
    names += [(registry, name) for registry in registries for name in config.sections() if name in registry.names()]
    lacking = [(registry.kind, name, registry.missing(name, allowed)) for registry, name in names]
    return [plugin for plugin in lacking if plugin[-1]]
