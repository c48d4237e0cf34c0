"""The runs of a sweep in processes beside this one."""

import pickle
import pickletools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import overload

from fedappeal.api.plan import Plan
from fedappeal.api.progress import shown
from fedappeal.api.run import Run, Watching, started
from fedappeal.record.files import CONFIG
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.engine import Simulation, quiet
from fedappeal.simulation.jobs import run_in_parallel
from server.given import Given

_MAIN = "__main__"


class _Jobs(Sequence[Callable[[], None]]):
    """What the processes do; each run is planned and packed when its turn comes."""

    def __init__(
        self, makers: Sequence[Callable[[], Plan]], paths: Sequence[Path], how: Simulation, watching: Watching
    ) -> None:
        self._makers, self._paths, self._how, self._watching = makers, paths, how, watching

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, index: int) -> Callable[[], None]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Callable[[], None]]: ...

    def __getitem__(self, index: int | slice) -> Callable[[], None] | Sequence[Callable[[], None]]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        packed = _packed(self._makers[index](), self._watching)
        return partial(run_packed, packed, self._paths[index], self._how)


def check_sendable(plan: Plan, watching: Watching) -> None:
    """Check that a run can be sent to another process.

    Raises:
        ConfigError: one line: what cannot.
    """
    if watching.on_round is not None:
        raise ConfigError("on_round is not allowed with jobs > 1: the rounds are in other processes (jobs = 1)")
    packed = _packed(plan, watching)
    if not hasattr(sys.modules[_MAIN], "__file__") and (name := _defined_here(packed)):
        raise ConfigError(
            f"jobs > 1 is not allowed with {name}: other processes do not see what a notebook defines; put it into a "
            "module and import it, or leave jobs = 1"
        )


def in_processes(
    makers: Sequence[Callable[[], Plan]], paths: Sequence[Path], how: Simulation, watching: Watching, at_once: int
) -> list[Run]:
    """Simulate runs in processes; return those that have begun, in order.

    Raises:
        RuntimeError: some failed; the others are in their folders.
    """
    failed: list[str] = []
    over = 0

    def ended(number: int, reason: str) -> None:
        nonlocal over
        over += 1
        if reason:
            failed.append(f"{paths[number].name}: {reason}")

    interrupted = False
    with shown(watching.quiet) as show:
        try:
            jobs = _Jobs(makers, paths, how, watching)
            run_in_parallel(jobs, at_once, ended, lambda: show("runs", over, len(paths)))
            show("runs", over, len(paths))
        except KeyboardInterrupt:
            interrupted = True
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(paths)} runs failed: {'; '.join(failed)} ({paths[0].parent})")
    runs = []
    for make, path in zip(makers, paths, strict=True):
        if (path / CONFIG).exists():
            run = Run(path, partial(_given, make), how, watching)
            run.interrupted = interrupted and not run.finished
            runs.append(run)
    if interrupted:
        print(f"interrupted: {len(runs)} of {len(paths)} runs have begun ({paths[0].parent})")
    return runs


def _given(make: Callable[[], Plan]) -> Given:
    return make().given


def run_packed(packed: bytes, path: Path, how: Simulation) -> None:
    """Simulate a run that was sent to this process."""
    quiet()
    plan, evaluate = pickle.loads(packed)  # nosec B301 # from the process that started this one
    started(lambda: plan, path, how, Watching(evaluate), lambda what, done, total: None, "")


def _packed(plan: Plan, watching: Watching) -> bytes:
    """Return a run as bytes.

    Raises:
        ConfigError: an object that cannot be packed.
    """
    try:
        return pickle.dumps((plan, watching.evaluate), protocol=5)
    except Exception as error:  # a class's own reduction may raise anything
        reason = " ".join(str(error).split())
        raise ConfigError(f"jobs > 1 is not allowed: an object cannot be sent to another process: {reason}") from None


def _defined_here(packed: bytes) -> str:
    """Return the name of something that the packed run takes from the program itself; empty: there is nothing."""
    recent: list[str] = []
    for _, argument, _ in pickletools.genops(packed):
        if isinstance(argument, str):
            if _MAIN + ":" in argument:
                return argument.partition(":")[2]
            if recent[-1:] == [_MAIN]:
                return argument
            recent.append(argument)
    return ""
