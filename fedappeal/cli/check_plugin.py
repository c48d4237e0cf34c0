"""`fedappeal check`: a plug-in of the author's own, tried before a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedappeal.cli.listing import plugins_of
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import LIBRARIES, MODELS
from fedappeal.views.tracking.tracker import TRACKERS


def check_own(name: str, settings: Mapping[str, Any], data_dir: str = "", conformance: bool = False) -> str:
    """Return a line that lists the checks of a plug-in.

    Args:
        name: ``package.module:Name``.
        settings: of the run in which it is tried, by kebab-case key.
        data_dir: folder of the data sets.
        conformance: whether it is tried under every condition, in every form.

    Raises:
        ConfigError: a line for each thing that is wrong.
    """
    from fedappeal.runs.dry_round import CONDITIONS, DryRun, check_plugins  # the engine, and with it torch

    library = name.partition(":")[0] in LIBRARIES.built_in
    kind = MODELS.kind if library else plugins_of(name)[0][0]
    if kind == TRACKERS.kind:
        raise ConfigError(f"name = '{name}' is not allowed: a dry run has no trackers; --track tries one in a run")
    plan = RunPlan.of(RunConfig.parse({**settings, kind: name}), Path("check"), data_dir=data_dir)
    plan.task.check()
    check_plugins(plan, "cpu")
    if conformance:
        if lines := list(DryRun(plan.config, plan.task, "always", "cpu").differences()):
            raise ConfigError("\n".join(lines))
        return f"{kind} {name}: conforms under {len(CONDITIONS)} conditions (task {plan.config.task})"
    return f"{kind} {name}: nothing found in a dry run (task {plan.config.task})"
