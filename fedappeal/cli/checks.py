"""Checks of a run on this machine, before anything is printed, started or written."""

import contextlib
import os
import tempfile
from pathlib import Path

from client.settings import NodeSettings
from fedappeal.record.folder import check_new
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import load_task
from fedappeal.tasks.share import ALL, AUTO, parts_of


def check_device(device: str) -> None:
    """Check that a device is there; auto and cpu need no torch for that.

    Raises:
        ConfigError: an unknown device, or none of that name here.
    """
    NodeSettings.parse({"device": device})
    if device not in ("auto", "cpu"):
        from client.data.cache import pick_device

        pick_device(device)


def check_initial_model(config: RunConfig, data_dir: str = "") -> None:
    """Check that the initial model's file, where one is named, holds the task's model.

    Raises:
        ConfigError: no such file, or another model's.
    """
    if not config.initial_model:
        return
    path = Path(config.initial_model)
    if not path.is_file():
        raise ConfigError(f"initial-model = '{path}' is not allowed: no such file")
    task = load_task(config.task_settings(), Path(data_dir) if data_dir else None)
    from fedappeal.tasks.initial import initial_arrays

    initial_arrays(task, config.seed, str(path))


def check_file(name: str, path: Path) -> None:
    """Check that a file can be written; its folder may still have to be made.

    Args:
        name: of the option.
        path: the file.

    Raises:
        ConfigError: a folder, or where no file can be made.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir():
        raise ConfigError(f"{name} = '{path}' is not allowed: it is a folder")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{name} = '{path}' is not allowed: no file can be made in '{folder}'")


def check_share(config: RunConfig, data_dir: str = "") -> None:
    """Check that what a run names to travel is in the task's model; imports torch where names are given.

    Raises:
        ConfigError: a pattern without a match, or nothing that travels.
    """
    if config.share in (AUTO, ALL):
        return
    task = load_task(config.task_settings(), Path(data_dir) if data_dir else None)
    parts_of(task.initial_model(config.seed), config.share)


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
