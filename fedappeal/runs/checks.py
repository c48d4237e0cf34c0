"""Checks of a run on this machine, before anything is started or written; the first is of the code that it names."""

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from client.participation.behaviour import Mixture
from client.settings import NodeSettings
from fedappeal.core.plugins import Allowed, allow_options, runs_only_with
from fedappeal.core.registry import REGISTRIES
from fedappeal.record.folder import check_new
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.socket_owner import NotTold, is_told
from fedappeal.tasks import TASKS
from fedappeal.tasks.share import ALL, AUTO, parts_of
from server.build import NOTHING_GIVEN, Given, named_plugins


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
    """Check device, data, own plug-ins and, of a new run, that initial model and what is to travel are the task's.

    Args:
        plan: the run.
        device: where its clients train.
        tried: whether its own plug-ins are tried; False: they were, with another seed.

    Raises:
        ConfigError: for the first thing that is wrong.
    """
    check_device(device)
    plan.task.check()
    if not plan.resumes:
        check_initial_model(plan)
        if plan.config.share not in (AUTO, ALL):
            parts_of(plan.task.initial_model(plan.config.seed), plan.config.share)
    if tried and (plan.plugins.foreign() or ":" in plan.config.model):
        from fedappeal.runs.dry_round import check_plugins  # the engine, and with it torch

        check_plugins(plan, device)


def check_device(device: str) -> None:
    """Check that a device is there; auto and cpu need no torch for that.

    Raises:
        ConfigError: an unknown device, or none of that name here.
    """
    NodeSettings.parse({"device": device})
    if device not in ("auto", "cpu"):
        from client.data.cache import pick_device

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
    made: list[Path] = []
    try:
        # Only trying tells: root may write where permissions say no, and not in a file system that takes no files.
        for folder in reversed([path, *path.parents]):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".fedappeal-"):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"out = '{path}' is not allowed: it cannot be written to ({reason})") from None
    finally:
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # another process has put something there meanwhile
                os.rmdir(folder)


def check_guarded() -> None:
    """Check that other users of this machine can be kept out, where its system can say whose a connection is.

    Raises:
        ConfigError: if this is Linux and the kernel does not say.
    """
    try:
        is_told()
    except NotTold as error:
        raise ConfigError(f"the SuperLink's ports cannot be kept from other users of this machine: {error}") from None


def check_allowed(config: RunConfig, path: Path, allow: Iterable[str], given: Given = NOTHING_GIVEN) -> None:
    """Check that a call allows the code that a run's folder names; nothing is imported.

    Args:
        config: the run's settings.
        path: its folder.
        allow: packages; ``.``: the current folder is searched for them.
        given: objects in place of names.

    Raises:
        ConfigError: one line: what the run names, and the options that allow it.
    """
    if missing := _not_allowed(config, allow, given):
        whose = " and ".join(f"{kind} '{name}'" for kind, name, _ in missing)
        raise ConfigError(f"'{path}' holds a run of {whose}: {runs_only_with({*chain(*(m for *_, m in missing))})}")


def resume_command(config: RunConfig, path: Path | str, *options: str) -> str:
    """Return the command that continues a run, with the options that allow the code which its settings name.

    Args:
        config: the run's settings.
        path: its folder.
        options: further ones.
    """
    allow = allow_options(chain(*(lacking for *_, lacking in _not_allowed(config, (), NOTHING_GIVEN))))
    return shlex.join(["fedappeal", "resume", str(path), *options, *allow])


def _not_allowed(config: RunConfig, allow: Iterable[str], given: Given) -> list[tuple[str, str, list[str]]]:
    """Return kind and name of each plug-in that a call does not allow, and what the call would have to allow."""
    allowed, registries = Allowed.of(allow, by_call=True), (*REGISTRIES, TASKS)
    names = named_plugins(config, given, Mixture.of_run(config, "always").parts)
    names += [(registry, name) for registry in registries for name in config.sections() if name in registry.names()]
    lacking = [(registry.kind, name, registry.missing(name, allowed)) for registry, name in names]
    return [plugin for plugin in lacking if plugin[-1]]
