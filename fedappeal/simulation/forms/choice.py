"""Which form a run's clients train in: side by side by batched layers or by vmap, or one after another."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from client.learner import Job
from client.training.models import FLOAT32, arrays_of
from client.training.noise import KEYED, seeded_noise
from client.training.requests import Arithmetic, TrainRequest
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.forms.batched import BatchedForm, NotBatchable
from fedappeal.simulation.forms.dry_run import DRY_RUN, check_form, short_reason
from fedappeal.simulation.forms.layered import LayeredForm
from fedappeal.simulation.forms.scheduler import BatchScheduler, ClientQueue, ThreadedScheduler
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.simulation.options import AUTO, BATCHED, LAYERS, SEQUENTIAL, VMAP
from fedappeal.simulation.pool import ClientsData
from fedappeal.simulation.process_wide import single_threaded_workers
from fedappeal.tasks.task import Task

_ALLOWED = {AUTO: (LAYERS, VMAP), BATCHED: (LAYERS, VMAP), LAYERS: (LAYERS,), VMAP: (VMAP,)}
"""The forms that a mode allows, the preferred one first."""
LEAST_GAIN = 1.05
"""How many times faster vmap has to be than one after another before ``auto`` takes it."""


class Choice(NamedTuple):
    """The mode in which a run's clients train.

    Attributes:
        mode: ``layers``, ``vmap`` or ``sequential``.
        why: what ``auto`` found; empty where there was nothing to find.
    """

    mode: str
    why: str

    def __str__(self) -> str:
        form = "batched layers" if self.mode == LAYERS else VMAP
        how = "one after another" if self.mode == SEQUENTIAL else f"side by side by {form}"
        return f"{how} ({self.why})" if self.why else how


class Problem(NamedTuple):
    """A run's training: settings, task, model and local rule.

    Attributes:
        config: the run's settings.
        task: its task.
        module: a model of the task, on the device of the run.
        rule: the local rule.
        pool: gives the data of some of the clients, on the device.
    """

    config: RunConfig
    task: Task
    module: nn.Module
    rule: type[LocalRule]
    pool: Callable[[], ClientsData]


def form_of(mode: str, task: Task, module: nn.Module) -> BatchedForm | None:
    """Return the batched form of a mode; None if clients train one by one.

    Raises:
        NotBatchable: the model has no such form.
    """
    if mode == SEQUENTIAL:
        return None
    return LayeredForm(task, module) if mode == LAYERS else VmapForm(task, module)


def choose(mode: str, problem: Problem, clock: Callable[[], float] = time.perf_counter) -> Choice:
    """Return the mode in which a run's clients train.

    Batched layers are taken wherever a model has them: all that was measured gains by them. Vmap is measured.

    Args:
        mode: one of `MODES`.
        problem: what is trained.
        clock: seconds, for the measurement.

    Raises:
        ConfigError: where the mode asks for a form that is not possible; names the layer or the rule.
    """
    if mode == SEQUENTIAL:
        return Choice(SEQUENTIAL, "")
    reason = "" if problem.rule.batched else f"local rule '{problem.rule.name}' has no batched form"
    if (precision := problem.config.training_precision) != FLOAT32:
        reason = f"training-precision = {precision} has no batched form"
    if not reason:
        for name in _ALLOWED[mode]:
            try:
                form = _checked_form(name, problem)
            except NotBatchable as missing:
                reason = str(missing)
                continue
            return _fastest(form, problem, clock) if mode == AUTO and name == VMAP else Choice(name, "")
    if mode != AUTO:
        raise ConfigError(f"mode = '{mode}' is not allowed: {reason} (auto, sequential)")
    return Choice(SEQUENTIAL, reason)


def _checked_form(name: str, problem: Problem) -> BatchedForm:
    """Return a form that does what clients do one by one.

    Raises:
        NotBatchable: the model has no such form; says why.
    """
    task, module = problem.task, problem.module
    form = form_of(name, task, module)
    assert form is not None
    data = task.load(0).to(next(module.parameters()).device).train
    noise = DRY_RUN._replace(keyed=problem.config.dropout_noise == KEYED)
    with seeded_noise(noise, data.device):
        check_form(form, task, module, data, noise)
    return form


def _fastest(form: BatchedForm, problem: Problem, clock: Callable[[], float]) -> Choice:
    """Return the faster form, batched or sequential, on the run's model and data."""
    clients = min(problem.config.resolved_clients_per_round, form.largest_batch)
    if clients < form.smallest_batch:
        return Choice(SEQUENTIAL, f"{clients} clients a round gain nothing by {form.name}")
    try:
        gain = measured_gain(form, problem, clients, clock)
    except TooSlow as slow:
        return Choice(SEQUENTIAL, f"{slow}: no gain by {form.name} is to be had")
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return Choice(SEQUENTIAL, f"{form.name}: {short_reason(str(error))}")
    if gain >= LEAST_GAIN:
        return Choice(form.name, f"{gain:.1f} times as fast as one after another")
    if gain >= 1:
        return Choice(SEQUENTIAL, f"{form.name} is only {gain:.2f} times as fast")
    return Choice(SEQUENTIAL, f"{form.name} takes {1 / gain:.1f} times as long")


BUDGET = 1.0
"""Seconds that a measurement may take, about."""
REPETITIONS = (3, 7)
"""Fewest and most pairs of timings."""
MOST_STEPS = 8
"""Local steps of a client in a measurement."""


class TooSlow(Exception):
    """One step takes so long that a comparison would take longer than it may."""


def measured_gain(form: BatchedForm, problem: Problem, clients: int, clock: Callable[[], float]) -> float:
    """Return the measured speed-up of clients side by side over one by one.

    One after another is what a run would do: with several PyTorch threads as many clients at a time, each on one.

    Args:
        form: how they train side by side.
        problem: what is trained; the values of its model are replaced.
        clients: how many clients.
        clock: seconds.

    Raises:
        TooSlow: there is no time for a comparison.
    """
    threads, together = torch.get_num_threads(), BatchScheduler(problem.pool(), form)
    with single_threaded_workers(threads) as workers:
        alone = Arithmetic() if workers is None else ThreadedScheduler(workers, threads)

        def one_after_another(requests: Sequence[TrainRequest]) -> None:
            if isinstance(alone, ClientQueue):
                train_all(alone, requests)
                return
            for request in requests:
                alone.train(request)

        (warm_up,) = _requests(problem, 1, 1)
        one_after_another([warm_up])
        longest = BUDGET / (2 * REPETITIONS[0] * form.smallest_batch)
        step = math.inf
        for _ in range(REPETITIONS[0]):
            step = min(step, _seconds(partial(one_after_another, [warm_up]), clock))
            if step > 2 * longest:  # no disturbance: another look would take as long again
                break
        if step > longest:
            raise TooSlow(f"a step takes {step:.2f} s")
        fits = int(BUDGET / (2 * REPETITIONS[0] * max(step, 1e-6)))
        clients = min(clients, fits)
        steps = max(1, min(MOST_STEPS, fits // (2 * clients), warm_up.job.training.steps(len(warm_up.data))))
        requests = _requests(problem, clients, steps)
        train_all(together, _requests(problem, clients, 1))
        return median_gain(partial(one_after_another, requests), partial(train_all, together, requests), clock)


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
    """Return the median ratio of the first's time to the second's.

    They are measured in turn.
    """
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


def _requests(problem: Problem, clients: int, steps: int) -> list[TrainRequest]:
    """Return the first clients' training requests, with SGD.

    What a rule adds costs both forms little.
    """
    training = problem.config.training
    arrays, draws, pool = arrays_of(problem.module), np.random.default_rng(0), problem.pool()

    def request(k: int) -> TrainRequest:
        data = pool.client(k).train
        batches = draws.integers(0, len(data), (steps, min(training.batch_size, len(data))))
        job = Job(SGD(), training, "measurement")
        return TrainRequest(problem.task, problem.module, k, data, arrays, job, batches, 0, str(k))

    return [request(k) for k in range(clients)]
