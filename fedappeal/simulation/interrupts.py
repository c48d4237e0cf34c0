"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) during a simulated run: they lose no finished round."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedappeal.system.process_end import terminals, write_nowhere


class Interrupts:
    """Whether the run was asked to end, and whether it may end now.

    A second request ends it at once: it then continues from its last checkpoint.

    Attributes:
        finished: the last round that is over.
        saved: the last round whose checkpoint is on the disk.
        asked: the signal that asked; 0: none has.
    """

    def __init__(self) -> None:
        self.finished = self.saved = self.asked = 0
        self._terminals = terminals()

    def check(self) -> None:
        """End the run where it was asked to; to be called between rounds.

        Raises:
            KeyboardInterrupt: it was.
        """
        if self.asked:
            raise KeyboardInterrupt

    def ask(self, signum: int, frame: FrameType | None = None) -> None:
        """Take a signal.

        Raises:
            KeyboardInterrupt: no finished round is lost by it, or it is the second.
        """
        if signum == signal.SIGHUP:
            write_nowhere(self._terminals)
        again, self.asked = bool(self.asked), signum
        if again or self.saved >= self.finished:
            raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take Ctrl-C, SIGTERM and SIGHUP in the main thread, and put back afterwards what took them before.

    The last two end the process by what took them before, once the run has been left. A signal that is ignored
    (SIGHUP by nohup) stays so. Other threads get no signals.
    """
    asked = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in wanted}
    taken = [number for number in wanted if before[number] not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, asked.ask)
    try:
        yield asked
    finally:
        for number in taken:
            signal.signal(number, before[number])
        if asked.asked in (signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(asked.asked)
    asked.check()  # asked after the last round: the run is whole, and its caller is told
