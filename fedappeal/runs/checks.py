"""Checks of a run on this machine, before a process or a file is made.

The first is of the code that the run names.
"""

import os
import shlex
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from client.participation.behaviour import Mixture
from client.settings import NodeSettings
from fedappeal.core.plugins import (
    HERE,
    Allowed,
    Registry,
    allow_options,
    current_folder_unsearched,
    is_ours,
    runs_only_with,
)
from fedappeal.core.registry import REGISTRIES
from fedappeal.record.columns import check_names
from fedappeal.record.folder import check_new
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.socket_owner import NotTold, is_told
from fedappeal.tasks import TASKS
from fedappeal.tasks.flower_app import FlowerApp
from fedappeal.tasks.share import ALL, AUTO, parts_of
from server.build import NO_OBJECTS, Objects, named_plugins


def check_trains_here(plan: RunPlan, device: str) -> None:
    """Check what a run needs whose clients train on this machine.

    A new run's folder can be written; the rest as `check_learns_here`.

    Raises:
        ConfigError: for the first thing that is wrong.
    """
    if not plan.resumes:
        check_out(plan.path)
    check_learns_here(plan, device)


def check_learns_here(plan: RunPlan, device: str, tried: bool = True) -> None:
    """Check a run's device, data, plug-ins and, if new, initial model and share.

    Args:
        plan: the run.
        device: where its clients train.
        tried: whether its own plug-ins are tried; False: they were, with another seed.

    Raises:
        ConfigError: for the first thing that is wrong.
    """
    check_device(device)
    plan.task.check()
    if isinstance(plan.task, FlowerApp):
        plan.task.initial_arrays()
        return
    if not plan.resumes:
        check_initial_model(plan)
        if plan.config.share not in (AUTO, ALL):
            parts_of(plan.task.initial_model(plan.config.seed), plan.config.share)
    own_strategy = not is_ours(plan.plugins.strategy)  # an object of it has no name
    if tried and (own_strategy or plan.plugins.foreign() or ":" in plan.config.model):
        from fedappeal.runs.dry_round import check_plugins  # the engine, and with it torch

        check_plugins(plan, device)
    check_names(plan.task.metric, plan.task.other_metrics)


def check_device(device: str) -> None:
    """Check that a device is there; auto and cpu need no torch for that.

    Raises:
        ConfigError: an unknown device, or none of that name here.
    """
    NodeSettings.parse({"device": device})
    if device not in ("auto", "cpu"):
        from client.training.devices import pick_device

        pick_device(device)


def check_initial_model(plan: RunPlan) -> None:
    """Check that the initial model's file, where one is named, holds the task's model.

    Raises:
        ConfigError: no such file, or another model's.
    """
    if not plan.config.initial_model:
        return
    path = Path(plan.config.initial_model)
    if not path.is_file():
        raise ConfigError(f"initial-model = '{path}' is not allowed: no such file")
    from fedappeal.tasks.share import initial_arrays

    initial_arrays(plan.task, plan.config.seed, str(path))


def check_out(path: Path) -> None:
    """Check that a new run's folder can be made and written to; leaves nothing behind.

    Raises:
        ConfigError: it already holds a run, is a file, or cannot be written to.
    """
    check_new(path)
    try:
        # Only trying tells: root may write where permissions say no, and not in a file system that takes no files.
        # Under a name of its own: another command may begin a run beside this one.
        whole = Path(os.path.abspath(path))
        present = next(folder for folder in (whole, *whole.parents) if folder.exists())
        with tempfile.TemporaryDirectory(dir=present, prefix=".fedappeal-") as trial:
            inside = Path(trial, whole.relative_to(present))
            inside.mkdir(parents=True, exist_ok=True)
            (inside / "trial").touch()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"out = '{path}' is not allowed: it cannot be written to ({reason})") from None


def check_guarded() -> None:
    """Check that other users of this machine can be kept out.

    Where its system can say whose a connection is.

    Raises:
        ConfigError: if this is Linux and the kernel does not say.
    """
    try:
        is_told()
    except NotTold as error:
        raise ConfigError(f"the SuperLink's ports cannot be kept from other users of this machine: {error}") from None


def check_allowed(config: RunConfig, path: Path, allow: Iterable[str], given: Objects = NO_OBJECTS) -> None:
    """Check that a call allows the code named by a run's folder.

    Nothing is imported unless all is allowed.

    Args:
        config: the run's settings.
        path: its folder.
        allow: packages; ``.``: the current folder is searched for them.
        given: objects in place of names.

    Raises:
        ConfigError: one line: what the run names, and the options that allow it; or what no folder may name.
    """
    if missing := _not_allowed(config, allow, given):
        whose = " and ".join(f"{kind} '{name}'" for kind, name, _ in missing)
        raise ConfigError(f"'{path}' holds a run of {whose}: {runs_only_with({*chain(*(m for *_, m in missing))})}")
    with nullcontext() if HERE in allow else current_folder_unsearched():
        _check_names(config, Allowed.of(allow, by_call=True), given)


def check_clients_take(plan: RunPlan) -> None:
    """Check that clients whose owners allow a run's packages take what it names.

    Raises:
        ConfigError: one line: what they refuse, such as an object that is neither a class nor a function.
    """
    if plan.plugins.task is FlowerApp:
        raise ConfigError(
            f"task = '{plan.config.task}' is not allowed: a Flower app is simulated (`fedappeal simulate --app`), or "
            "deployed by `flwr run`"
        )
    _check_names(plan.config, Allowed.of(plan.plugins.packages()), plan.plugins.given)


def _check_names(config: RunConfig, allowed: Allowed, given: Objects) -> None:
    for registry, name in _names(config, given):
        if name not in registry.built_in:
            registry.maker(name, allowed)


def resume_command(config: RunConfig, path: Path | str, *options: str) -> str:
    """Return the command that continues a run, with options for its settings' code.

    Args:
        config: the run's settings.
        path: its folder.
        options: further ones.
    """
    allow = allow_options(chain(*(lacking for *_, lacking in _not_allowed(config, (), NO_OBJECTS))))
    return shlex.join(["fedappeal", "resume", str(path), *options, *allow])


def _not_allowed(config: RunConfig, allow: Iterable[str], given: Objects) -> list[tuple[str, str, list[str]]]:
    """Return each disallowed plug-in's kind and name, and what would allow it."""
    allowed = Allowed.of(allow, by_call=True)
    lacking = [(registry.kind, name, registry.missing(name, allowed)) for registry, name in _names(config, given)]
    return [plugin for plugin in lacking if plugin[-1]]


def _names(config: RunConfig, given: Objects) -> list[tuple[Registry[Any], str]]:
    """Return the names of a run's plug-ins, each with its registry.

    Plug-ins that only have settings in the run are among them.
    """
    names = named_plugins(config, given, Mixture.of_run(config, "always").parts)
    choices = [(registry, registry.names()) for registry in (*REGISTRIES, TASKS)]  # each reads what is installed
    return names + [(r, name) for r, installed in choices for name in config.sections() if name in installed]
