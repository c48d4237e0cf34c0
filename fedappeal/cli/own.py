"""`fedappeal check`: a plug-in of the author's own, tried before a run."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from fedappeal.core.registry import REGISTRIES
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import LIBRARIES, MODELS, TASKS

_KINDS = (*REGISTRIES, TASKS, MODELS)


def setting_of(name: str) -> str:
    """Return the setting that names a plug-in of this kind.

    Raises:
        ConfigError: it is none of the kinds, or cannot be imported.
    """
    for registry in _KINDS:
        if name in registry.names():
            return registry.kind
    if name.partition(":")[0] in LIBRARIES.built_in:
        return MODELS.kind
    plugin = TASKS.find(name)
    if isinstance(plugin, type):
        for registry in _KINDS:
            if issubclass(plugin, registry.base_class):
                return registry.kind
    elif callable(plugin):  # a task takes (settings, data_dir)
        takes = signature(plugin).parameters.keys()
        return MODELS.kind if takes <= {"input_shape", "num_classes"} else TASKS.kind
    bases = ", ".join(registry.base_name for registry in _KINDS)
    raise ConfigError(f"'{name}' is no plug-in: it derives from none of {bases}")


def check_own(name: str, settings: Mapping[str, Any], data_dir: str = "", conformance: bool = False) -> str:
    """Return a line that says what was checked of a plug-in.

    Args:
        name: ``package.module:Name``.
        settings: of the run in which it is tried, by kebab-case key.
        data_dir: folder of the data sets.
        conformance: whether it is tried under every condition, in every form.

    Raises:
        ConfigError: a line for each thing that is wrong.
    """
    from fedappeal.runs.dry_round import CONDITIONS, DryRun, check_plugins  # the engine, and with it torch

    kind = setting_of(name)
    if conformance and kind != TASKS.kind and "task" not in settings:
        settings = {"model": "logistic", **settings}  # without dropout, of which each form draws its own
    plan = RunPlan.of(RunConfig.parse({**settings, kind: name}), Path("check"), data_dir=data_dir)
    plan.task.check()
    check_plugins(plan, "cpu")
    if conformance:
        if lines := list(DryRun(plan.config, plan.task, "always", "cpu").differences()):
            raise ConfigError("\n".join(lines))
        return f"{kind} {name}: conforms under {len(CONDITIONS)} conditions (task {plan.config.task})"
    return f"{kind} {name}: nothing found in a dry run (task {plan.config.task})"
