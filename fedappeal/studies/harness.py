"""The harness: does the runs that are missing, several at once, and shows the progress."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from threadpoolctl import ThreadpoolController

from fedappeal.runs.launch.in_process import Machine, simulate_quietly
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.jobs import check_on_ray
from fedappeal.simulation.options import Simulation
from fedappeal.studies.experiment import Results
from fedappeal.studies.plan import RESULT, Plan, PlannedRun, skipped_lines
from fedappeal.system.files import replace_file
from fedappeal.system.locks import InUse, only_process
from fedappeal.system.versions import recorded_versions
from fedappeal.views.terminal.printing import say
from fedappeal.views.terminal.progress import bars
from server.build import run_plugins

LOCK = ".lock"

Compute = Callable[[Mapping[str, Any], int], Mapping[str, Any]]


def carry_out(plan: Plan, machine: Machine, console: Console, redo: bool = False) -> Results:
    """Run the unfinished runs of a plan.

    Args:
        plan: all runs.
        machine: how.
        console: where progress is shown.
        redo: run those again that were recorded with other settings.

    Returns:
        What came out of all finished runs, and why others failed.

    Raises:
        ConfigError: a run was recorded with other settings than planned, and is not to be redone; or another process
            is at it.
    """
    check_on_ray(machine.ray, machine.at_once)
    for line in skipped_lines(plan.experiment.arms, plan.skipped):
        say(console, f"skipped: {line}", style="yellow")
    # Folders that are only read are not locked: several pages draw on the same runs.
    ours = {run.path.parent.parent for run in plan.runs if redo or not run.finished()}
    with _alone(ours):
        todo = _todo(plan.runs, redo, ours)
        if done := len(plan.runs) - len(todo):
            console.print(f"{done} of {len(plan.runs)} runs are there already")
        failed = _do(todo, plan, machine, console) if todo else {}
    finished = tuple(run.result() for run in plan.runs if (run.arm.name, run.seed) not in failed and run.finished())
    return Results(plan.experiment, finished, failed=failed, skipped=plan.skipped)


@contextlib.contextmanager
def _alone(folders: set[Path]) -> Iterator[None]:
    """Lock these folders: an interrupted run may be another process's, still running."""
    with contextlib.ExitStack() as locks:
        for folder in sorted(folders):
            try:
                locks.enter_context(only_process(folder, LOCK))
            except InUse:
                raise ConfigError(f"another process is at the runs in {folder}") from None
        yield


def _todo(runs: Sequence[PlannedRun], redo: bool, ours: set[Path]) -> list[PlannedRun]:
    """Return the runs to do, all in locked folders.

    Removes what interrupted ones left.
    """
    todo = []
    for run in runs:
        finished = run.finished()
        if finished and (differing := run.differing()):
            if not redo:
                raise ConfigError(
                    f"{run.path} was run with other settings ({'; '.join(differing)}): "
                    "--redo runs it again, another --out leaves it"
                )
            finished = False
        if not finished and (folder := run.path.parent.parent) not in ours:
            raise ConfigError(f"another process is at the runs in {folder}")  # it has just begun one again
        if not finished:
            todo.append(run)
    for run in todo:
        run.forget()
    return todo


def _do(todo: Sequence[PlannedRun], plan: Plan, machine: Machine, console: Console) -> dict[tuple[str, int], str]:
    machine = machine.for_jobs(len(todo))
    how = Simulation(device=machine.device, data_dir=machine.data_dir, threads=machine.threads, resumable=False)
    failed: dict[tuple[str, int], str] = {}
    ended: set[int] = set()

    def on_end(number: int, reason: str) -> None:
        ended.add(number)
        if reason:
            failed[todo[number].arm.name, todo[number].seed] = reason

    with bars(console) as progress:
        bar = progress.add_task("", total=sum(run.rounds for run in todo))

        def tick() -> None:
            # Runs that have ended count in full, whether they failed or finished early.
            done = [run.rounds if n in ended else run.rounds_done() for n, run in enumerate(todo)]
            text = f"{plan.experiment.name} {len(ended)} of {len(todo)} runs, rounds"
            progress.update(bar, completed=sum(done), description=text)

        work = [_work(run, plan.experiment.compute, how) for run in todo]
        machine.do(work, on_end, tick)
        tick()
    return failed


def _work(run: PlannedRun, compute: Compute | None, how: Simulation) -> Callable[[], None]:
    if run.config:
        plan = RunPlan(run_plugins(run.config), run.path, run.name, how.data_dir)
        return partial(simulate_quietly, plan, how)
    if compute is None:
        raise ValueError(f"{run.name}: neither a run configuration nor a computation")
    return partial(_compute, compute, run.settings, run.seed, run.path, how.threads)


def _compute(compute: Compute, settings: Mapping[str, Any], seed: int, path: Path, threads: int) -> None:
    for library in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[library] = str(threads)
    if "torch" in sys.modules:  # a computation may do without, and to import it takes seconds
        sys.modules["torch"].set_num_threads(threads)
    started = time.monotonic()
    # NumPy is loaded by now, and its BLAS reads no variable any more.
    with ThreadpoolController().select(user_api="blas").limit(limits=threads):
        result = compute(settings, seed)
    record = {
        "settings": dict(settings),
        "seed": seed,
        "versions": recorded_versions(),
        "seconds": round(time.monotonic() - started, 3),
        "result": result,
    }
    path.mkdir(parents=True, exist_ok=True)
    replace_file(path / RESULT, (json.dumps(record, allow_nan=False) + "\n").encode())
