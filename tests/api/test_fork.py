"""A simulation in a process that was forked from one that has simulated."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedappeal
from tests.api.blobs import QUICK, Net, losses, pairs

_LONGEST = 60.0
"""Seconds of a child that waits for threads which it has not; else it ends in less than one."""


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Return what a forked child's work returns; None: it did not end."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(work()))
    child.start()
    answered = receiver.poll(_LONGEST)
    result = receiver.recv() if answered else None
    child.kill()
    child.join()
    return result


def test_a_fork_after_a_simulation_simulates(threads: None, tmp_path: Path) -> None:
    def simulated(name: str, **more: Any) -> Any:
        return losses(fedappeal.simulate("fedavg", model=Net, data=pairs(), out=tmp_path / name, **QUICK, **more))

    def refused() -> str:
        with pytest.raises(fedappeal.ConfigError) as refusal:
            simulated("several", threads=2)
        return str(refusal.value)

    before = simulated("parent")
    assert in_a_fork(lambda: (simulated("child"), refused())) == (
        pytest.approx(before, rel=1e-6),
        "threads = 2 is not allowed in a process that was forked after a simulation: PyTorch would wait for threads "
        "that the fork did not copy; 1, or start the process by multiprocessing's 'spawn'",
    )
