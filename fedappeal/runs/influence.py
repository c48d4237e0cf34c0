"""Bounds on a client's influence in runs whose clients are other people's: the default, and what the heading says."""

from dataclasses import replace

from fedappeal.settings.config import ConfigError
from server.build import Chosen
from strategies.rounds.sums.influence import FAR, FEWEST

INFLUENCE, BOUNDED = "influence", "bounded"


def check_bounded(run: Chosen) -> None:
    """Check that a run of real processes can be bounded as its settings say.

    Raises:
        ConfigError: it cannot.
    """
    if run.config.influence != BOUNDED:
        return
    run.strategy.check_influence(run.config.influence, run.config.aggregation)
    if lack := run.strategy.bounds_lack(run.config, run.settings_of(run.strategy)):
        raise ConfigError(lack)


def bounded_by_default(run: Chosen) -> tuple[Chosen, str]:
    """Return a run whose settings say nothing of bounds: bounded; or as it is, and a line that says why."""
    reason = run.strategy.unbounded or run.strategy.bounds_lack(run.config, run.settings_of(run.strategy))
    if reason:
        return run, f"influence: off: one client can replace the model ({reason})"
    return replace(run, config=run.config.model_copy(update={INFLUENCE: BOUNDED})), ""


def influence_line(run: Chosen) -> str:
    """Return what a heading says of the bounds; empty where there are none."""
    config = run.config
    if config.influence != BOUNDED:
        return ""
    if config.clients < FEWEST:
        return f"influence: bounded has no effect on fewer than {FEWEST} clients: one can replace the model"
    unbounded = f"; not bounded: {run.strategy.still_open}" if run.strategy.still_open else ""
    return (
        f"influence: bounded (an update counts as the clients' median at most, as does a weight above "
        f"{config.influence_weight:g} medians; one against the common direction, or above "
        f"{FAR * config.influence_norm:g} medians, for nothing{unbounded})"
    )
