"""Which form a run's clients train in: side by side by batched layers or by vmap, or one after another."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from client.training.models import FLOAT32
from client.training.requests import seeded_noise
from fedappeal.core.local_rule import LocalRule
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.forms.batched import BatchedForm, NotBatchable
from fedappeal.simulation.forms.dry_run import check_form, short_reason
from fedappeal.simulation.forms.layered import LayeredForm
from fedappeal.simulation.forms.measurement import TooSlow, measured_gain
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.simulation.options import AUTO, BATCHED, LAYERS, SEQUENTIAL, VMAP
from fedappeal.simulation.pool import ClientsData
from fedappeal.tasks.task import Task

_ALLOWED = {
    AUTO: (LAYERS, VMAP),
    BATCHED: (LAYERS, VMAP),
    LAYERS: (LAYERS,),
    VMAP: (VMAP,),
    SEQUENTIAL: (),
}
"""The forms that a mode allows, the preferred one first."""
LEAST_GAIN = 1.05
"""How many times faster vmap has to be than one after another before ``auto`` takes it."""


class Choice(NamedTuple):
    """How the clients of a run train.

    Attributes:
        mode: ``layers``, ``vmap`` or ``sequential``.
        why: what ``auto`` found; empty where there was nothing to find.
    """

    mode: str
    why: str

    def __str__(self) -> str:
        how = {
            LAYERS: "side by side by batched layers",
            VMAP: "side by side by vmap",
            SEQUENTIAL: "one after another",
        }
        return f"{how[self.mode]} ({self.why})" if self.why else how[self.mode]


class Problem(NamedTuple):
    """What a run's clients train.

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

    @property
    def at_once(self) -> int:
        """How many clients a round asks."""
        return min(self.config.clients_per_round or self.config.clients, self.config.clients)


def form_of(mode: str, task: Task, module: nn.Module) -> BatchedForm | None:
    """Return the form in which clients train side by side; None: they do not.

    Raises:
        NotBatchable: the model has no such form.
    """
    if mode == SEQUENTIAL:
        return None
    return LayeredForm(task, module) if mode == LAYERS else VmapForm(task, module)


def choose(mode: str, problem: Problem, clock: Callable[[], float] = time.perf_counter) -> Choice:
    """Return how a run's clients train.

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
                form = _checked(name, problem)
            except NotBatchable as missing:
                reason = str(missing)
                continue
            return _measured(form, problem, clock) if mode == AUTO and name == VMAP else Choice(name, "")
    if mode != AUTO:
        raise ConfigError(f"mode = '{mode}' is not allowed: {reason} (auto, sequential)")
    return Choice(SEQUENTIAL, reason)


def _checked(name: str, problem: Problem) -> BatchedForm:
    """Return a form that does what clients do one by one.

    Raises:
        NotBatchable: the model has no such form; says why.
    """
    task, module = problem.task, problem.module
    form = form_of(name, task, module)
    assert form is not None
    written_out = isinstance(form, LayeredForm) and not form.model.traced
    if not (written_out and type(task).loss is Task.loss and task.num_classes and task.input_shape):
        data = problem.pool().client(0).train
        with seeded_noise(0, "dry run", 0, data.device):
            check_form(form, task, module, data)
    return form


def _measured(form: BatchedForm, problem: Problem, clock: Callable[[], float]) -> Choice:
    """Return the faster of a form and one after another, on the run's own model and data."""
    clients = min(problem.at_once, form.largest_batch)
    if clients < form.smallest_batch:
        return Choice(SEQUENTIAL, f"{clients} clients a round gain nothing by {form.name}")
    try:
        gain = measured_gain(form, problem.config, problem.task, problem.module, problem.pool(), clients, clock)
    except TooSlow as slow:
        return Choice(SEQUENTIAL, f"{slow}: no gain by {form.name} is to be had")
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return Choice(SEQUENTIAL, f"{form.name}: {short_reason(str(error))}")
    if gain >= LEAST_GAIN:
        return Choice(form.name, f"{gain:.1f} times as fast as one after another")
    if gain >= 1:
        return Choice(SEQUENTIAL, f"{form.name} is only {gain:.2f} times as fast")
    return Choice(SEQUENTIAL, f"{form.name} takes {1 / gain:.1f} times as long")
