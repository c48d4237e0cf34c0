"""What happens to the clients of a soak, and when: drawn from a seed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.soak.lines import Lines

KINDS = ("kill", "stop", "cut")
"""SIGKILL; SIGSTOP for some seconds; all connections broken, and none taken for some seconds."""


@dataclass(frozen=True)
class Fault:
    """One thing that happens to one client.

    Attributes:
        kind: one of `KINDS`.
        client: its number.
        seconds: how long it lasts; 0: until the client is started again.
    """

    kind: str
    client: int
    seconds: float


def drawn(seed: int, clients: int) -> Iterator[Fault]:
    """Yield faults without end, the same for the same arguments."""
    random = Random(seed)
    while True:
        kind, client = random.choice(KINDS), random.randrange(clients)
        yield Fault(kind, client, 0.0 if kind == "kill" else round(random.uniform(2.0, 9.0), 1))


@dataclass
class Faults:
    """Lets faults happen, one every some seconds.

    Attributes:
        seed: of the draws.
        every: seconds from one to the next.
        lines: the clients' connections.
        pids: returns each client's process id now, by its number.
        done: what happened, with the seconds since the start.
    """

    seed: int
    every: float
    lines: Lines
    pids: Callable[[], dict[int, int]]
    done: list[tuple[float, Fault]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._coming = drawn(self.seed, len(self.lines.ports))
        self._began = time.monotonic()
        self._due = self._began + self.every
        self._over: list[tuple[float, Fault, int]] = []

    def step(self) -> Fault | None:
        """End the faults that are over, and begin the next one where it is due; return that one."""
        now = time.monotonic()
        for ends, fault, pid in [each for each in self._over if each[0] <= now]:
            self._over.remove((ends, fault, pid))
            self._end(fault, pid)
        if now < self._due:
            return None
        self._due = max(self._due + self.every, now)
        busy = {fault.client for _, fault, _ in self._over}
        fault = next(fault for fault in self._coming if fault.client not in busy)
        pid = self.pids()[fault.client]
        self._begin(fault, pid)
        if fault.seconds:
            self._over.append((now + fault.seconds, fault, pid))
        self.done.append((round(now - self._began, 1), fault))
        return fault

    def end(self) -> None:
        """End all of them."""
        for _, fault, pid in self._over:
            self._end(fault, pid)
        self._over.clear()

    def count(self, kind: str) -> int:
        """Number of faults of a kind so far."""
        return sum(fault.kind == kind for _, fault in self.done)

    def _begin(self, fault: Fault, pid: int) -> None:
        if fault.kind == "cut":
            self.lines.cut(fault.client)
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)

    def _end(self, fault: Fault, pid: int) -> None:
        if fault.kind == "cut":
            self.lines.mend(fault.client)
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
