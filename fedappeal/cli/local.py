"""`fedappeal local`: a run with a real process for each client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedappeal.cli.against import plan_against, show_against
from fedappeal.cli.onlookers import CommandOnlookers, chosen_onlookers, ends, report_unused
from fedappeal.federation.own_superlink import NOT_GUARDED
from fedappeal.runs.launch.local import LocalProcesses
from fedappeal.runs.plan import RunPlan, deployed_plan
from fedappeal.system.socket_owner import is_told
from fedappeal.views.terminal.shown import complain


def start_local(
    settings: dict[str, Any],
    launcher: LocalProcesses,
    data_dir: str = "",
    track: Sequence[str] = (),
    onlookers: CommandOnlookers | None = None,
    against: str = "",
) -> Path:
    """Run a new federation; return the run's folder.

    With ``against`` the same clients are simulated under that strategy afterwards, and both are shown.

    Raises:
        ConfigError: before anything is started, for a setting that is not allowed.
    """
    onlookers, settings = chosen_onlookers(track, settings, onlookers or CommandOnlookers())
    plan = deployed_plan(settings, data_dir, here=True)
    launcher.check(plan)
    other = plan_against([plan], against) if against else None
    launch_local(plan, launcher, onlookers)
    if other is not None:
        show_against(plan.path, other, device=launcher.device)
    return plan.path


def launch_local(plan: RunPlan, launcher: LocalProcesses, onlookers: CommandOnlookers) -> None:
    """Launch a checked run, and end this command where it does not finish."""
    report_unused([plan])
    if not is_told():
        complain(NOT_GUARDED)
    with ends():
        launcher.launch(plan, onlookers)
