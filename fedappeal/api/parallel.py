"""The runs of a sweep in processes beside this one."""

import pickle
import pickletools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

from fedappeal.api.progress import shown
from fedappeal.api.run import Run, Watching, started
from fedappeal.record.files import CONFIG
from fedappeal.runs.launch.in_process import Machine
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.engine import quiet
from fedappeal.simulation.options import Simulation
from server.build import Given

_MAIN = "__main__"


class _Jobs(Sequence[Callable[[], None]]):
    """What the processes do; each run is planned when its turn comes."""

    def __init__(self, makers: Sequence[Callable[[], RunPlan]], how: Simulation, watching: Watching) -> None:
        self._makers, self._how, self._evaluate = makers, how, watching.evaluate

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, index: int) -> Callable[[], None]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Callable[[], None]]: ...

    def __getitem__(self, index: int | slice) -> Callable[[], None] | Sequence[Callable[[], None]]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        return partial(_run, self._makers[index](), self._how, self._evaluate)


def _run(plan: RunPlan, how: Simulation, evaluate: Any) -> None:
    """Simulate a run that was sent to this process."""
    quiet()
    started(plan, how, Watching(evaluate), lambda what, done, total: None)


def check_sendable(plan: RunPlan, watching: Watching) -> None:
    """Check that a run can be sent to another process.

    Raises:
        ConfigError: one line: what cannot.
    """
    if watching.on_round is not None:
        raise ConfigError("on_round is not allowed with jobs > 1: the rounds are in other processes (jobs = 1)")
    try:
        packed = pickle.dumps((plan, watching.evaluate), protocol=5)
    except Exception as error:  # a class's own reduction may raise anything
        reason = " ".join(str(error).split())
        raise ConfigError(f"jobs > 1 is not allowed: an object cannot be sent to another process: {reason}") from None
    if not hasattr(sys.modules[_MAIN], "__file__") and (name := _defined_here(packed)):
        raise ConfigError(
            f"jobs > 1 is not allowed with {name}: other processes do not see what a notebook defines; put it into a "
            "module and import it, or leave jobs = 1"
        )


def in_processes(
    makers: Sequence[Callable[[], RunPlan]],
    paths: Sequence[Path],
    how: Simulation,
    watching: Watching,
    machine: Machine,
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
            machine.do(_Jobs(makers, how, watching), ended, lambda: show("runs", over, len(paths)))
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


def _given(make: Callable[[], RunPlan]) -> Given:
    return make().plugins.given


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
