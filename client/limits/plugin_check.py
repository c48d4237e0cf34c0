"""Whether the plug-ins of a run are the same code here as on the server."""

from collections.abc import Callable

from fedappeal.core.plugins import Allowed, Provenance
from fedappeal.core.registry import REGISTRIES
from fedappeal.settings.config import ConfigError
from fedappeal.tasks import TASKS, find_task

_FIND: dict[str, Callable[[str, Allowed], object]] = {registry.kind: registry.load for registry in REGISTRIES}
_FIND[TASKS.kind] = find_task
"""By kind: returns the plug-in of a name, and nothing else that has one: what it is goes to the server."""


def check_plugins(lines: str, allowed: Allowed) -> None:
    """Compare the server's plug-ins with those installed here.

    Args:
        lines: a line for each plug-in that is not fedappeal's: its kind, its name, its provenance, separated by tabs.
        allowed: what this client's owner allows.

    Raises:
        ConfigError: one that is not allowed, is not here, or is other code here; names both.
    """
    for line in filter(None, lines.split("\n")):
        kind, _, rest = line.partition("\t")
        name, _, theirs = rest.partition("\t")
        if kind not in _FIND:
            raise ConfigError(f"plug-in kind '{kind}' is not known to this client: {', '.join(_FIND)}")
        ours = str(Provenance.of(name, _FIND[kind](name, allowed)))
        if ours != theirs:
            raise ConfigError(f"{kind} differs: this client has {ours}, the run {theirs}")
