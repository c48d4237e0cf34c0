"""Bounds on a client's influence in runs whose clients are other people's: the default, and what the heading says."""

from collections.abc import Mapping
from typing import Any

from fedappeal.settings.config import ConfigError, RunConfig
from server.build import chosen, own_settings
from strategies.rounds.sums.influence import FAR, FEWEST

INFLUENCE = "influence"


def check_deployed(config: RunConfig) -> None:
    """Check that a run of real processes can be bounded as its settings say.

    Raises:
        ConfigError: it cannot.
    """
    if config.influence != "bounded":
        return
    strategy = chosen(config).strategy
    strategy.check_influence(config.influence, config.aggregation)
    if lack := strategy.bounds_lack(config, own_settings(config, strategy)):
        raise ConfigError(lack)


def bounded_by_default(settings: Mapping[str, Any]) -> tuple[RunConfig, str]:
    """Return a run's settings, bounded where they say nothing of it, and why it is not where that cannot be.

    Args:
        settings: as given, by key.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    config = RunConfig.parse(settings)
    if INFLUENCE in settings:
        check_deployed(config)
        return config, ""
    bounded = config.model_copy(update={INFLUENCE: "bounded"})
    strategy = chosen(config).strategy
    reason = strategy.unbounded or strategy.bounds_lack(config, own_settings(config, strategy))
    return (config, f"influence: off: one client can replace the model ({reason})") if reason else (bounded, "")


def influence_line(config: RunConfig) -> str:
    """Return what a heading says of the bounds; empty where there are none."""
    if config.influence != "bounded":
        return ""
    if config.clients < FEWEST:
        return f"influence: bounded has no effect on fewer than {FEWEST} clients: one can replace the model"
    still_open = chosen(config).strategy.still_open
    left = f"; not bounded: {still_open}" if still_open else ""
    return (
        f"influence: bounded (an update counts as the clients' median at most, as does a weight above "
        f"{config.influence_weight:g} medians; one against the common direction, or above "
        f"{FAR * config.influence_norm:g} medians, for nothing{left})"
    )
