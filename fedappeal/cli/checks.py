"""What can be wrong with a run on this machine, found before anything is printed, started or written."""

import contextlib
import os
import tempfile
from pathlib import Path

from client.settings import NodeSettings
from fedappeal.protocol.config import ConfigError, RunConfig
from fedappeal.tasks import load_task
from fedappeal.tasks.share import ALL, AUTO, parts_of
from server.run_folder import check_new


def check_device(device: str) -> None:
    """Check that a device is there; imports torch only where one is named that may be missing.

    Raises:
        ConfigError: an unknown device, or none of that name here.
    """
    NodeSettings.parse({"device": device})
    if device not in ("auto", "cpu"):
        from client.data.cache import pick_device

        pick_device(device)


def check_initial_model(config: RunConfig, data_dir: str = "") -> None:
    """Check that the file of the initial model, where one is named, holds the task's model; imports torch then.

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
    """Check that the folder of a new run can be made and written to; leaves nothing behind.

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
