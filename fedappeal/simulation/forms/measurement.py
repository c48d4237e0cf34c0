"""How much faster clients train side by side than one after another: a short measurement on a run's own problem."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from client.training.models import arrays_of
from client.training.requests import Arithmetic, TrainRequest
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalTrainingSettings
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.forms.batched import BatchedForm
from fedappeal.simulation.forms.scheduler import BatchScheduler, ClientQueue
from fedappeal.simulation.forms.threaded import ThreadedScheduler
from fedappeal.simulation.pool import ClientsData
from fedappeal.simulation.process_wide import single_threaded_workers
from fedappeal.tasks.task import Task

BUDGET = 1.0
"""Seconds that a measurement may take, about."""
REPETITIONS = (3, 7)
"""Fewest and most pairs of timings."""
MOST_STEPS = 8
"""Local steps of a client in a measurement."""


class TooSlow(Exception):
    """One step takes so long that a comparison would take longer than it may."""


def measured_gain(
    form: BatchedForm,
    config: RunConfig,
    task: Task,
    module: nn.Module,
    pool: ClientsData,
    clients: int,
    clock: Callable[[], float],
) -> float:
    """Return how many times faster clients train side by side than one after another.

    One after another is what a run would do: with several PyTorch threads as many clients at a time, each on one.

    Args:
        form: how they train side by side.
        config: says how much and with which settings.
        task: gives the loss.
        module: the model, on the device of the run; its values are replaced.
        pool: the clients' data.
        clients: how many of them.
        clock: seconds.

    Raises:
        TooSlow: there is no time for a comparison.
    """
    threads, training = torch.get_num_threads(), LocalTrainingSettings.of(config.as_config())
    requests_of = partial(_requests, task, module, pool, training)
    with single_threaded_workers(threads) as workers:
        alone = Arithmetic() if workers is None else ThreadedScheduler(workers, threads)
        return _gain(alone, BatchScheduler(pool, form), requests_of, training, clients, clock)


def _gain(
    alone: Arithmetic,
    together: BatchScheduler,
    requests_of: Callable[[int, int], list[TrainRequest]],
    training: LocalTrainingSettings,
    clients: int,
    clock: Callable[[], float],
) -> float:
    """Return how many times faster ``together`` trains clients than ``alone``; see `measured_gain`."""

    def one_after_another(requests: Sequence[TrainRequest]) -> None:
        if isinstance(alone, ClientQueue):
            train_all(alone, requests)
            return
        for request in requests:
            alone.train(request)

    def side_by_side(requests: Sequence[TrainRequest]) -> None:
        train_all(together, requests)

    (warm_up,) = requests_of(1, 1)
    one_after_another([warm_up])
    longest = BUDGET / (2 * REPETITIONS[0] * together.smallest_batch)
    step = math.inf
    for _ in range(REPETITIONS[0]):
        step = min(step, _seconds(partial(one_after_another, [warm_up]), clock))
        if step > 2 * longest:  # no disturbance: another look would take as long again
            break
    if step > longest:
        raise TooSlow(f"a step takes {step:.2f} s")
    fits = int(BUDGET / (2 * REPETITIONS[0] * max(step, 1e-6)))
    clients = min(clients, fits)
    steps = max(1, min(MOST_STEPS, fits // (2 * clients), training.steps(len(warm_up.data))))
    requests = requests_of(clients, steps)
    side_by_side(requests_of(clients, 1))
    return median_gain(partial(one_after_another, requests), partial(side_by_side, requests), clock)


def train_all(queue: ClientQueue, requests: Sequence[TrainRequest]) -> None:
    """Train clients by a queue, without what they do besides."""
    left = [str(request.place) for request in requests]
    for name, request in zip(left, requests, strict=True):
        queue.start(name, partial(queue.train, request))
    while left:
        came = queue.results(left)
        left = [name for name in left if name not in came]


def median_gain(
    one_after_another: Callable[[], None], side_by_side: Callable[[], None], clock: Callable[[], float]
) -> float:
    """Return the median of how many times longer the first takes than the second, measured in turn."""
    started = clock()
    gains: list[float] = []
    fewest, most = REPETITIONS
    while len(gains) < fewest or (len(gains) < most and clock() - started < BUDGET):
        longer = _seconds(one_after_another, clock)
        gains.append(longer / max(_seconds(side_by_side, clock), 1e-9))
    return statistics.median(gains)


def _seconds(work: Callable[[], None], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return clock() - started


def _requests(
    task: Task, module: nn.Module, pool: ClientsData, training: LocalTrainingSettings, clients: int, steps: int
) -> list[TrainRequest]:
    """Return the local training of the first clients, with SGD: what a rule adds costs both forms little."""
    arrays, draws = arrays_of(module), np.random.default_rng(0)
    requests = []
    for k in range(clients):
        data = pool.client(k).train
        size = min(training.batch_size, len(data))
        requests.append(
            TrainRequest(
                task=task,
                model=module,
                place=k,
                data=data,
                arrays=arrays,
                rule=SGD(),
                training=training,
                batches=draws.integers(0, len(data), (steps, size)),
                seed=0,
                client_id=str(k),
                server_round=0,
                purpose="measurement",
            )
        )
    return requests
