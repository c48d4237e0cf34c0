"""The pace of work, with clocks that a test sets."""

from dataclasses import dataclass

import numpy as np
import pytest

from client.limits.guard import Deadline
from client.limits.limits import LimitReached
from client.training.requests import TrainingProblem
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.tasks import load_task
from tests.node import run_config


@dataclass
class Clocks:
    """Wall and CPU time."""

    wall: float = 0.0
    cpu: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.wall += seconds

    def work(self, seconds: float) -> None:
        self.wall += seconds
        self.cpu += seconds

    def deadline(self, until: float, cores: float) -> Deadline:
        return Deadline(
            until,
            "too long",
            clock=lambda: self.wall,
            max_cpu=cores,
            used=lambda: self.cpu,
            sleep=self.sleep,
        )


def test_work_waits_until_it_has_taken_no_more_cores_than_it_may() -> None:
    """2 s of CPU at half a core are 4 s."""
    clocks = Clocks()
    deadline = clocks.deadline(100.0, 0.5)
    for _ in range(4):
        clocks.work(0.5)
        deadline.check()
    assert clocks.wall == pytest.approx(4.0)
    clocks.work(1.0)
    assert deadline.seconds_owed() == pytest.approx(1.0)


def test_work_that_is_slow_enough_does_not_wait() -> None:
    clocks = Clocks()
    deadline = clocks.deadline(100.0, 0.5)
    clocks.work(1.0)
    clocks.sleep(5.0)
    deadline.check()
    assert clocks.wall == 6.0
    assert deadline.seconds_owed() < 0
    clocks.deadline(100.0, 0.0).check()
    assert clocks.wall == 6.0, "0 is no limit"


def test_it_waits_no_longer_than_until_the_deadline() -> None:
    clocks = Clocks()
    deadline = clocks.deadline(3.0, 0.1)
    clocks.work(1.0)
    with pytest.raises(LimitReached, match="too long"):
        deadline.check()
    assert clocks.wall == 3.0


def test_a_rule_that_goes_on_after_the_deadline_is_stopped_at_its_next_loss() -> None:
    task = load_task(run_config().task_settings())
    data, clocks = task.load(0).train, Clocks()
    settings = LocalTrainingSettings(learning_rate=0.1, batch_size=4, local_steps=1)
    problem = TrainingProblem(task, data, np.zeros((1, 4), np.int64), settings, clocks.deadline(3.0, 0.0))
    model = task.initial_model(0)
    (minibatch,) = problem.minibatches()
    assert problem.loss_of(model, minibatch) > 0
    clocks.sleep(4.0)
    with pytest.raises(LimitReached, match="too long"):
        problem.loss_of(model, minibatch)
