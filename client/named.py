"""What messages name, checked: plug-ins and the strategy."""

from collections.abc import Callable, Mapping

from fedappeal.core.algorithm import ClientSide, of_run, reports
from fedappeal.core.plugins import Allowed, Provenance, parse_section
from fedappeal.core.registry import REGISTRIES, STRATEGIES
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, section
from fedappeal.tasks import MODELS, TASKS

_FIND: dict[str, Callable[[str, Allowed], object]] = {registry.kind: registry.load for registry in REGISTRIES}
_FIND |= {registry.kind: registry.maker for registry in (TASKS, MODELS)}
"""By kind: returns the plug-in of a name, and nothing else that has one: what it is goes to the server."""
NO_STRATEGY = ClientSide()
"""Strategy of messages that name none: a trained model, and no report."""


def check_plugins(lines: str, allowed: Allowed) -> None:
    """Compare the server's plug-ins with those installed here.

    Args:
        lines: a line for each plug-in that is not fedappeal's: its kind, its name, its provenance, separated by tabs.
        allowed: what this client's owner allows.

    Raises:
        ConfigError: one that is not allowed, is not here, or is other code here; names both.
    """
    for line in filter(None, lines.split("\n")):
        kind, _, named_code = line.partition("\t")
        name, _, of_run = named_code.partition("\t")
        if kind not in _FIND:
            raise ConfigError(f"plug-in kind '{kind}' is not known to this client: {', '.join(_FIND)}")
        installed = str(Provenance.of(name, _FIND[kind](name, allowed)))
        if installed != of_run:
            raise ConfigError(f"{kind} differs: this client has {installed}, the run {of_run}")


def named_strategy(
    run: RunConfig, expected: ClientSide, allowed: Allowed, config: Mapping[str, Scalar]
) -> tuple[ClientSide, Mapping[str, Scalar]]:
    """Return the strategy that a message names, and what it tells about it.

    Where the run's own settings name the strategy, the message has to agree with them: what a client reports under
    one strategy could tell, beside what it reports under another, what it keeps to itself.

    Args:
        run: the run's settings.
        expected: the client's strategy, which these name.
        allowed: what its owner allows.
        config: of the message.

    Raises:
        ConfigError: for another strategy or other settings than the run's; where the owner does not allow it.
    """
    name = str(config.get(keys.STRATEGY, ""))
    sent = section(config, name)
    if "strategy" not in run.model_fields_set:
        if not name:
            return NO_STRATEGY, {}
        kind = STRATEGIES.load(name, allowed)
        settings_keys = set(kind.Settings.keys())
        settings = {f"{name}.{key}": value for key, value in sent.items() if key in settings_keys}
        algorithm = of_run(kind, run.with_plugins(settings.items()))
        return algorithm, {**algorithm.settings.as_config(), **sent}
    if not name and not reports(expected) and expected.LocalRule is None:
        return NO_STRATEGY, {}
    if name != expected.name:
        raise ConfigError(f"strategy = '{name}' is not allowed in this run: '{expected.name}'")
    settings = expected.settings.as_config()
    values = {key: sent[key] for key in settings if key in sent}
    if any(type(value) is not type(settings[key]) or value != settings[key] for key, value in values.items()):
        for key, value in parse_section(type(expected), {**settings, **values}).as_config().items():
            if value != settings[key]:
                raise ConfigError(f"{name}.{key} = {value} is not allowed in this run: {settings[key]}")
    return expected, {**settings, **sent}
