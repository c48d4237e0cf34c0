"""`fedappeal submit`: a run on a long-running SuperLink."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedappeal.cli.onlookers import CommandOnlookers, chosen_onlookers, ends, report_unused
from fedappeal.runs.launch.remote import Submission
from fedappeal.runs.plan import RunPlan, deployed_plan
from fedappeal.settings.config import ConfigError


def submit_run(
    settings: dict[str, Any],
    launcher: Submission,
    track: Sequence[str] = (),
    onlookers: CommandOnlookers | None = None,
) -> Path:
    """Submit a new run, and wait for it unless told not to; return its folder, as the SuperLink sees it.

    Raises:
        ConfigError: before anything is submitted, for a setting that is not allowed.
    """
    onlookers, settings = chosen_onlookers(track, settings, onlookers or CommandOnlookers())
    plan = deployed_plan(settings)
    launch_submission(plan, launcher, onlookers)
    return plan.path


def launch_submission(plan: RunPlan, launcher: Submission, onlookers: CommandOnlookers) -> None:
    """Check and submit a run, and end this command where it does not finish.

    Raises:
        ConfigError: before anything is submitted, for what is not allowed.
    """
    launcher.check(plan)
    _check_observed(onlookers, plan.path, launcher.detach)
    report_unused([plan])
    with ends():
        launcher.launch(plan, onlookers)


def _check_observed(onlookers: CommandOnlookers, path: Path, detach: bool) -> None:
    """Check that what looks on at the run can: it reads the run's folder, while this command waits.

    Raises:
        ConfigError: this command does not wait for the run, or does not see its folder.
    """
    if detach and (page := onlookers.page.page):
        raise ConfigError(f"page = '{page}' is not allowed with --detach: `fedappeal watch --superlink` serves it")
    for option, asked in (("track", onlookers.trackers), ("metrics-port", onlookers.metrics.port)):
        if asked and detach:
            raise ConfigError(f"{option} is not allowed with --detach: it needs a command that follows the run")
        if asked and not path.is_absolute():
            raise ConfigError(
                f"{option} is not allowed with out = '{path}': the run's folder is read here, so give its "
                "absolute path, which this machine sees too (--out)"
            )
