"""Jobs that are done in the test's process: to spawn one costs 3 s for its imports. tests/simulation spawns them."""

import pickle
from collections.abc import Callable, Sequence

import pytest
import torch

from fedappeal.simulation.jobs import reason_of


def do_here(
    jobs: Sequence[Callable[[], None]],
    at_once: int,
    on_end: Callable[[int, str], None],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Do what `fedappeal.simulation.jobs.run_in_parallel` does, one job after another in this process."""
    threads = torch.get_num_threads()
    for number, job in enumerate(jobs):
        try:
            pickle.loads(pickle.dumps(job))()  # as another process gets it
        except Exception as error:
            on_end(number, reason_of(error.with_traceback(None)))  # no process sends it
        else:
            on_end(number, "")
        tick()
    torch.set_num_threads(threads)


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the jobs of a machine in this process."""
    monkeypatch.setattr("fedappeal.runs.launch.in_process.run_in_parallel", do_here)
