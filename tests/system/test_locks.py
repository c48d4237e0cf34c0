"""A folder's lock: who holds it is named right, and who only looks keeps no process out."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedappeal.system.locks import LOCK, InUse, is_held, only_process


@pytest.fixture
def killed(tmp_path: Path) -> str:
    """The id of a process that is no more, which stands in a folder's lock."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (tmp_path / LOCK).write_text(str(process.pid))
    return str(process.pid)


def test_the_one_that_has_just_taken_it_is_named_and_not_one_that_was_killed(tmp_path: Path, killed: str) -> None:
    with open(tmp_path / LOCK, "r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def write() -> None:
            time.sleep(0.3)
            held.truncate(0)
            held.write(str(os.getppid()))
            held.flush()

        writer = threading.Thread(target=write)
        writer.start()
        with pytest.raises(InUse) as refused, only_process(tmp_path):
            pass
        writer.join()
    assert refused.value.process == str(os.getppid()) != killed


def test_a_process_that_looks_for_a_while_keeps_none_out(tmp_path: Path, killed: str) -> None:
    looks = open(tmp_path / LOCK)  # noqa: SIM115
    fcntl.flock(looks, fcntl.LOCK_SH)
    threading.Timer(0.3, looks.close).start()
    with only_process(tmp_path):
        assert (tmp_path / LOCK).read_text() == str(os.getpid())
        assert is_held(tmp_path)
    assert ((tmp_path / LOCK).read_text(), is_held(tmp_path)) == ("", False)


def test_one_that_never_says_who_it_is_is_unknown(tmp_path: Path) -> None:
    with open(tmp_path / LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InUse, match="is in use by process unknown"), only_process(tmp_path):
            pass
