"""Checks of a run on this machine, before anything is printed, started or written."""

import contextlib
import os
import tempfile
from pathlib import Path

from client.settings import NodeSettings
from fedappeal.record.folder import check_new
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.system.socket_owner import NotTold, is_told
from fedappeal.tasks.share import ALL, AUTO, parts_of


def check_trains_here(plan: RunPlan, device: str) -> None:
    """Check what a run needs whose clients train on this machine.

    A new run's folder can be written; the rest as `check_learns_here`.

    Raises:
        ConfigError: for the first thing that is wrong.
    """
    if not plan.resumes:
        check_out(plan.path)
    check_learns_here(plan, device)


def check_learns_here(plan: RunPlan, device: str) -> None:
    """Check device, data and, of a new run, that its initial model and what it names to travel are the task's.

    Raises:
        ConfigError: for the first thing that is wrong.
    """
    check_device(device)
    plan.task.check()
    if plan.resumes:
        return
    check_initial_model(plan)
    if plan.config.share not in (AUTO, ALL):
        parts_of(plan.task.initial_model(plan.config.seed), plan.config.share)


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
