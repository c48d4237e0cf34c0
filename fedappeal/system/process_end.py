"""How a process ends with the one that started it, and with its terminal.

python -P -m fedappeal.system.process_end PARENT PROGRAM [ARGUMENT ...]    becomes a program that ends with PARENT
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import Popen

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux).

    Elsewhere nothing is done.

    It may be called between fork and exec, and holds after exec. It counts the *thread* that started this process as
    its parent, so that thread has to stay.

    Args:
        parent: the parent's process id; where it has ended already, this process ends here.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def end_child(process: "Popen[Any]", seconds: float) -> None:
    """End a child process by SIGTERM, after some seconds by SIGKILL, with the group that it leads."""
    from subprocess import TimeoutExpired

    process.terminate()
    try:
        process.wait(seconds)
    except TimeoutExpired:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            leads = os.getpgid(process.pid) == process.pid
            (os.killpg if leads else os.kill)(process.pid, signal.SIGKILL)
        process.wait()


def terminals() -> list[int]:
    """Return those of standard output and standard error that are terminals."""
    return [number for number in (1, 2) if os.isatty(number)]


def write_nowhere(numbers: list[int]) -> None:
    """Redirect these open files to nowhere.

    A terminal that has been closed would raise an error.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in numbers:
        os.dup2(nowhere, number)
    os.close(nowhere)


@contextmanager
def signals_taken(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals during the block, and restore their handlers afterwards.

    One that is ignored (SIGHUP by nohup) stays so. Signals reach the main thread alone: elsewhere nothing is done.

    Args:
        numbers: the signals.
        handler: is given a signal, and the frame that it interrupts.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if here}
    replaced = {number: former for number, former in before.items() if former not in (signal.SIG_IGN, None)}
    for number in replaced:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in replaced.items():
            signal.signal(number, former)


@contextmanager
def end_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM and a closed terminal (SIGHUP) as Ctrl-C.

    As `signals_taken`.

    A container's first process would not end by SIGTERM otherwise.
    """
    written = terminals()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            write_nowhere(written)
        raise KeyboardInterrupt

    with signals_taken((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # nosec B606 # no shell
