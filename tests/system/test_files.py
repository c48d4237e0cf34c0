"""What a killed process leaves half-written is told from everything else."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors

from fedappeal.settings.config import ConfigError
from fedappeal.system.files import (
    array_shapes,
    check,
    delete_unfinished,
    read_safetensors,
    read_values,
    replace_by,
    replace_file,
    write_output,
    write_safetensors,
)

KILLED = """
import os, signal, sys
from pathlib import Path
import fedappeal.system.files as files

def killed(path):
    (path.parent / ".tmpAb12Cd").write_bytes(path.read_bytes())  # as safetensors leaves it, killed in its write
    os.kill(os.getpid(), signal.SIGKILL)

files.seal = killed
files.write_safetensors(Path(sys.argv[1]), {}, {"round": 2})
"""


def test_half_written_files_are_deleted_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "run-a.safetensors"
    write_safetensors(path, {"w": np.ones(3)}, {"round": 1})
    others = {".tmpfolder", ".hidden", "lock", "run-b.safetensors.damaged", "a.1.tmp", path.name}
    for name in others - {path.name, ".tmpfolder"}:
        (tmp_path / name).touch()
    (tmp_path / ".tmpfolder").mkdir()
    killed = subprocess.Popen([sys.executable, "-c", KILLED, path])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # a parent may be slow to ask
    assert len(os.listdir(tmp_path)) == len(others) + 2
    delete_unfinished(tmp_path)
    assert killed.wait() == -signal.SIGKILL
    assert set(os.listdir(tmp_path)) == others
    assert read_safetensors(path)[1] == {"round": 1}
    delete_unfinished(tmp_path / "missing")


def test_what_a_running_process_writes_stays_and_two_of_its_threads_write_two_files(tmp_path: Path) -> None:
    path, stale = tmp_path / "report.html", tmp_path / f".report.html.{os.getpid()}.tmp"
    stale.touch()
    os.utime(stale, (0, 0))  # of a process that had this one's number before it began
    with replace_by(path) as first, replace_by(path) as second:
        delete_unfinished(tmp_path)
        assert not stale.exists()
        first.write_text("first")
        second.write_text("second")
        assert first.read_text() == "first"
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("read", [read_safetensors, read_values, array_shapes, check])
@pytest.mark.parametrize(("at", "damaged"), [(1, False), (2, False), (3, False), (2, True)])
def test_a_file_that_is_replaced_while_it_is_read_is_as_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object], at: int, damaged: bool
) -> None:
    path, new, opened = tmp_path / "model.safetensors", tmp_path / "new", 0
    write_safetensors(path, {"w": np.zeros(9)}, {"round": 1})
    write_safetensors(new, {"much": np.ones(900)}, {"round": 2, "more": "x" * 99})
    if damaged:
        new.write_bytes(new.read_bytes()[:-1] + b"x")

    def counted(opens: Callable[..., object], file: object, *rest: object, **named: object) -> object:
        nonlocal opened
        opened += file == path
        if opened == at and new.exists():
            os.replace(new, path)
        return opens(file, *rest, **named)

    monkeypatch.setattr("fedappeal.system.files.open", partial(counted, open), raising=False)
    monkeypatch.setattr("fedappeal.system.files.safe_open", partial(counted, safetensors.safe_open))
    if damaged and read is read_safetensors:
        with pytest.raises(ConfigError, match="its arrays do not match"):
            read(path)
    else:
        read(path)


@pytest.mark.parametrize("write", [replace_file, partial(write_output, "output"), write_safetensors])
def test_what_a_full_disk_does_not_take_is_named(
    write: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of our own writes the system names no file, of those of safetensors it raises no error of the system."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_for_safetensors(*_: object) -> None:
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    path, safe = tmp_path / "x", write is write_safetensors
    monkeypatch.setattr("safetensors.numpy.save_file", full_for_safetensors)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises((OSError, ConfigError)) as error:
        write(path, *([{}, {}] if safe else [b"content"]))
    assert str(error.value) in (
        f"[Errno 28] No space left on device: '{path}'",
        f"output = '{path}' cannot be written: No space left on device",
    )
    assert not list(tmp_path.iterdir())
