"""`fedappeal simulate`: one run, or several at once, in this process or in a few beside it."""

from collections.abc import Sequence

from fedappeal.cli.onlookers import CommandOnlookers, ends
from fedappeal.runs.launch.in_process import InProcess
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError


def start_simulations(
    plans: Sequence[RunPlan], launcher: InProcess, onlookers: CommandOnlookers | None = None
) -> None:
    """Run all plans, and show how far they are.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    onlookers = onlookers or CommandOnlookers()
    if onlookers.metrics.port and len(plans) > 1:
        raise ConfigError(f"metrics-port = {onlookers.metrics.port} is not allowed with several runs (0)")
    if onlookers.page.page and len(plans) > 1:
        raise ConfigError("page is not allowed with several runs: `fedappeal watch RUN` shows one of them")
    launcher = launcher.check(plans)
    with ends():
        launcher.launch(plans, onlookers)
