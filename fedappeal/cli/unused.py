"""Settings of plug-ins that a run does not use: accepted, because sweeps need that, and reported."""

from collections import Counter
from collections.abc import Sequence

from fedappeal.core.plugins import Plugin, is_ours
from fedappeal.settings.config import RunConfig
from fedappeal.views.terminal.shown import complain
from server.build import chosen, unused_settings


def report_unused(runs: Sequence[RunConfig]) -> None:
    """Print a line on standard error for each setting that a run does not use.

    Args:
        runs: the run's settings; those of all runs of a sweep.

    Raises:
        ConfigError: for a setting of no known plug-in, or one that its plug-in does not have.
    """
    beside = _plugins(runs)
    for line, count in Counter(line for config in runs for line in unused_settings(config, beside)).items():
        where = f"in {count} of {len(runs)} runs: " if len(runs) > 1 else ""
        complain(f"{where}{line}")


def without_others(runs: Sequence[RunConfig]) -> list[RunConfig]:
    """Return the runs of a sweep, each without settings of own plug-ins that only another run names."""
    beside = _plugins(runs)
    foreign = {name for name, plugin in beside.items() if not is_ours(plugin)}
    trimmed = []
    for config in runs:
        others = foreign - set(_plugins([config]))
        kept = tuple((key, value) for key, value in config.plugins if key.partition(".")[0] not in others)
        trimmed.append(config.model_copy(update={"plugins": kept}))
    return trimmed


def _plugins(runs: Sequence[RunConfig]) -> dict[str, type[Plugin]]:
    """Return the plug-ins that runs choose, by the name of their settings."""
    return {plugin.settings_name(): plugin for config in runs for plugin in chosen(config).plugins()}
