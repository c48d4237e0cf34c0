"""How much faster clients train side by side, by a clock that the test holds."""

from typing import Any

import pytest
import torch

from client.training.requests import Arithmetic
from client.training.sgd import SGD
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.forms.choice import REPETITIONS, Problem, TooSlow, measured_gain, median_gain
from fedappeal.simulation.forms.scheduler import BatchScheduler, ThreadedScheduler
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.simulation.pool import Pool
from tests.simulation.structures import EXAMPLES, Images

CLIENTS = len(EXAMPLES)


def problem_of(config: RunConfig) -> Problem:
    task = Images(config.task_settings())
    pool = Pool(task, range(CLIENTS), torch.device("cpu"))
    return Problem(config, task, task.initial_model(0), SGD, lambda: pool)


class Clock:
    """A clock that moves only where it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_gain_is_the_median_of_pairs() -> None:
    clock, slow, fast = Clock(), iter([0.2, 9.0, 0.2, 0.2, 0.2, 0.2, 0.2]), iter([0.1] * 7)

    def one_after_another() -> None:
        clock.now += next(slow)

    def side_by_side() -> None:
        clock.now += next(fast)

    # The second pair was disturbed, and took so long that the fewest pairs have to do.
    assert median_gain(one_after_another, side_by_side, clock) == pytest.approx(2.0)
    assert len(list(slow)) == 7 - REPETITIONS[0]


@pytest.mark.parametrize(("cost", "gain"), [(0.002, 0.5), (0.0005, 2.0)])
def test_clients_side_by_side_are_compared_with_the_same_clients_one_after_another(
    monkeypatch: pytest.MonkeyPatch, cost: float, gain: float
) -> None:
    """Each client's step takes a millisecond alone, and ``cost`` of one in a batch."""
    clock, trained = Clock(), {"alone": 0, "together": 0}
    real = BatchScheduler._train

    def alone(arithmetic: Arithmetic, request: Any) -> Any:
        clock.now += 0.001 * len(request.batches)
        trained["alone"] += 1
        return request.arrays

    def together(scheduler: BatchScheduler, requests: Any) -> Any:
        clock.now += cost * sum(len(request.batches) for request in requests)
        trained["together"] += len(requests)
        return real(scheduler, requests)

    monkeypatch.setattr(Arithmetic, "train", alone)
    monkeypatch.setattr(BatchScheduler, "_train", together)
    config = RunConfig.parse({"clients": CLIENTS, "batch-size": 5, "local-steps": 3})
    problem = problem_of(config)
    found = measured_gain(VmapForm(problem.task, problem.module), problem, CLIENTS, clock)
    assert found == pytest.approx(gain)
    pairs = REPETITIONS[1]
    assert trained == {"alone": CLIENTS * pairs + 1 + REPETITIONS[0], "together": CLIENTS * (pairs + 1)}


def test_on_several_threads_clients_are_compared_with_as_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, real = Clock(), BatchScheduler._train

    def on_threads(scheduler: ThreadedScheduler, request: Any) -> Any:
        clock.now += 0.0005 * len(request.batches)
        return request.arrays

    def together(scheduler: BatchScheduler, requests: Any) -> Any:
        clock.now += 0.001 * sum(len(request.batches) for request in requests)
        return real(scheduler, requests)

    monkeypatch.setattr(ThreadedScheduler, "train", on_threads)
    monkeypatch.setattr(BatchScheduler, "_train", together)
    config = RunConfig.parse({"clients": CLIENTS, "batch-size": 5, "local-steps": 3})
    problem = problem_of(config)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = measured_gain(VmapForm(problem.task, problem.module), problem, CLIENTS, clock)
    finally:
        torch.set_num_threads(before)
    assert found == pytest.approx(0.5)


def test_a_step_that_takes_too_long_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def alone(arithmetic: Arithmetic, request: Any) -> Any:
        clock.now += 0.5

    monkeypatch.setattr(Arithmetic, "train", alone)
    config = RunConfig.parse({"clients": CLIENTS})
    problem = problem_of(config)
    with pytest.raises(TooSlow, match=r"a step takes 0\.50 s"):
        measured_gain(VmapForm(problem.task, problem.module), problem, CLIENTS, clock)
    assert clock.now == pytest.approx(2 * 0.5)  # once to warm up, once to see
