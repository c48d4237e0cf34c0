"""Names of plug-in classes: a program hands over the class, a run's settings hold its name."""

from collections.abc import Mapping
from typing import Any

from fedappeal.core.plugins import Registry
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS
from fedappeal.settings.config import ConfigError

CLASSES: Mapping[str, Registry[Any]] = {
    "participation": POLICIES,
    "local_rule": LOCAL_RULES,
    "requirement": REQUIREMENTS,
}
"""Settings that name a plug-in."""


def name_of(registry: Registry[Any], kind: type) -> str:
    """Return the name by which a run finds a class; empty where it cannot be found by one."""
    for name in registry.built_in:
        if registry.load(name) is kind:
            return name
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        return name if registry.find(name) is kind else ""
    except ConfigError:
        return ""


def with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with names in place of plug-in classes; ``participation`` may be a dict of shares.

    Raises:
        ConfigError: a class of another kind, or one that cannot be found by a name.
    """
    named = dict(settings)
    for setting, registry in CLASSES.items():
        value = named.get(setting)
        if setting == "participation" and isinstance(value, Mapping):
            shares = ((_name(setting, registry, policy), share) for policy, share in value.items())
            named[setting] = ",".join(f"{name}={share}" for name, share in shares)
        elif value is not None and not isinstance(value, str):
            named[setting] = _name(setting, registry, value)
    return named


def _name(setting: str, registry: Registry[Any], value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, type) or not issubclass(value, registry.base_class):
        raise ConfigError(f"{setting} = {value!r} is not allowed: a name, or a subclass of {registry.base_name}")
    if not (name := name_of(registry, value)):
        raise ConfigError(
            f"{setting} = {value.__qualname__} is not allowed: define the class at the top of a module or a notebook"
        )
    return name
