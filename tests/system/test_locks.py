"""A folder's lock: who holds it is named right, and who only looks keeps no process out."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedappeal.system.locks import CHANGES, LOCK, InUse, changing, is_held, only_process


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


def waits(folder: Path, seconds: float = 0.2) -> bool:
    """Whether another thread that is to change the folder waits for this one."""
    changed = threading.Event()

    def change() -> None:
        with changing(folder):
            changed.set()

    threading.Thread(target=change).start()
    return not changed.wait(seconds)


def test_a_change_waits_for_another_and_a_thread_may_begin_one_inside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with changing(tmp_path):
        with changing(Path()), changing(tmp_path / "other"):
            assert waits(tmp_path)
        assert waits(tmp_path), "the inner one's end is not the outer one's"
    assert not waits(tmp_path, 30)
    assert (tmp_path / CHANGES).stat().st_mode & 0o077 == 0


def test_neither_a_killed_process_nor_one_that_was_forked_meanwhile_keeps_the_lock(tmp_path: Path) -> None:
    program = "import sys, time\nfrom pathlib import Path\nfrom fedappeal.system.locks import changing\n"
    program += "with changing(Path(sys.argv[1])):\n    print(flush=True)\n    time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert waits(tmp_path)
    process.kill()
    process.communicate()
    with changing(tmp_path):
        if not (child := os.fork()):
            time.sleep(60)
            os._exit(0)
    try:
        assert not waits(tmp_path, 30)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def no_locks(folder: Path, patch: pytest.MonkeyPatch) -> None:
    def refused(number: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    patch.setattr(fcntl, "flock", refused)


def a_folder_in_its_place(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / CHANGES).mkdir()


@pytest.mark.parametrize("without", [no_locks, a_folder_in_its_place])
def test_nobody_waits_where_nothing_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    without(tmp_path, monkeypatch)
    with changing(tmp_path):
        assert not waits(tmp_path, 30)
    with pytest.raises(ZeroDivisionError), changing(tmp_path):
        _ = 1 / 0
