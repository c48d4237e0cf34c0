"""Our learner: a task's model and a client's data, trained and measured by torch, alone or beside others."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.data.own_data import load_own_data
from client.data.refused import OwnDataError, OwnDataRefused
from client.learner import (
    GRADIENT,
    HALVES,
    PATH,
    PERSONAL,
    RECORDS,
    RULES,
    SPLITS,
    Job,
    Learner,
    Learners,
    Sent,
    stretch,
)
from client.settings import NodeSettings
from client.training.devices import pick_device
from client.training.models import arrays_of
from client.training.noise import KEYED, Noise
from client.training.requests import Arithmetic, EvaluateRequest, GradientRequest, TrainRequest
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.plugins import Allowed
from fedappeal.core.requirement import Evaluation
from fedappeal.data.columns import Columns
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import ClientData, Split, with_held_out
from fedappeal.tasks.share import ALL, parts_of, share_of
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard

log = logging.getLogger("fedappeal.client")


class TaskModel:
    """A task and its model on a device, as clients of a run share them; read-only.

    Attributes:
        task: the task.
        device: where clients train.
        initial: w_0.
        parts: which of its arrays travel, and which stay.
        model: a model on the device, for its structure: its values do not last.
        layout: layout of what travels.
        trainable: names of the trainable parameters that travel, in the model's order.
        fingerprint: the task's.
    """

    def __init__(self, task: Task, seed: int, device: torch.device, learners: "TaskLearners") -> None:
        self.task, self.device, self.fingerprint = task, device, task.fingerprint
        self.initial, self.model = learners.initial(task, seed), learners.scratch_model(task, seed, device)
        self.parts = parts_of(self.initial, share_of(task))
        self.layout = Layout.of(arrays_of(self.initial, self.parts.shared))
        shared = set(self.parts.shared)
        self.trainable = [name for name, p in self.model.named_parameters() if p.requires_grad and name in shared]


class TaskLearners(Learners):
    """Makes learners of a run's task; tasks, data and models are loaded once, and shared."""

    def __init__(
        self,
        arithmetic: Arithmetic | None = None,
        data: Callable[[int], ClientData] | None = None,
        task: Task | None = None,
        strategy_of: Callable[[RunConfig], ClientSide | None] = lambda config: None,
    ) -> None:
        """Begin.

        Args:
            arithmetic: trains and measures; None: one client at a time.
            data: a simulator's, a client's data by its number; None: loaded for each client.
            task: in place of the one that a run's settings name.
            strategy_of: makes a run's strategy in place of the one that its settings name; None: that one.
        """
        self.simulate(arithmetic, data)
        self._given, self._strategy_of = task, strategy_of
        # In a cycle, what is loaded would stay until the collector looks at the oldest objects.
        weak: Any = proxy(self)
        self.task = lru_cache(maxsize=4)(partial(TaskLearners._task, weak))
        self.initial = lru_cache(maxsize=4)(partial(TaskLearners._initial, weak))
        self.scratch_model = lru_cache(maxsize=4)(partial(TaskLearners._scratch_model, weak))
        self._model = lru_cache(maxsize=4)(partial(TaskLearners._load, weak))
        self._share = lru_cache(maxsize=256)(partial(TaskLearners._load_share, weak))
        self._own_data = lru_cache(maxsize=2)(partial(TaskLearners._load_own_data, weak))

    def simulate(self, arithmetic: Arithmetic | None, data: Callable[[int], ClientData] | None) -> None:
        """Take up a simulator's arithmetic and data; arguments as for `TaskLearners`."""
        self._arithmetic = arithmetic or Arithmetic()
        self._data, self.simulated = data, data is not None

    def strategy_of(self, config: RunConfig) -> ClientSide | None:
        """Return a strategy in place of the one that a run's settings name.

        None where that one holds.
        """
        return self._strategy_of(config)

    def clear(self) -> None:
        """Let go of what is shared; learners that are kept have theirs still."""
        for loaded in (self.task, self.initial, self.scratch_model, self._model, self._share, self._own_data):
            loaded.cache_clear()

    def __call__(self, config: RunConfig, node: NodeSettings, client_id: str) -> "TaskLearner":
        """Return a client's learner, as `Learners`."""
        of_task = self._model(config, node.of_any_client())
        task, device, held_out = of_task.task, of_task.device, config.holds_out
        if self._data is not None:
            data = self._data(node.partition_id)
        elif node.data:
            data = self._own_data(task, node.data, client_id, device, node.columns, held_out)
        else:
            data = self._share(task, node.partition_id, device, held_out)
        return TaskLearner(config, of_task, data, client_id, node.partition_id, self._arithmetic)

    def _task(self, settings: TaskSettings, data_dir: str, allowed: Allowed) -> Task:
        """Return the task."""
        return self._given or load_task(settings, data_dir, allowed)

    def _initial(self, task: Task, seed: int) -> nn.Module:
        """Return w_0; it is not to be changed."""
        if self.room is not None:
            self.room.check_model(task, seed)
        model = task.initial_model(seed)
        if self.room is not None:
            self.room.check_built(task, model)
        return model

    def _scratch_model(self, task: Task, seed: int, device: torch.device) -> nn.Module:
        """Return a model of the task on a device; its values do not last."""
        return copy.deepcopy(self.initial(task, seed)).to(device)

    def _load(self, config: RunConfig, node: NodeSettings) -> TaskModel:
        task = self.task(config.task_settings(), node.data_dir, node.allowed)
        return TaskModel(task, config.seed, pick_device(node.device), self)

    def _load_share(self, task: Task, partition_id: int, device: torch.device, hold_out: bool) -> ClientData:
        """Return one client's share of the task's data, on its device."""
        if self.room is not None:
            self.room.check_data(task, partition_id)
        data = task.load(partition_id)
        return (with_held_out(data) if hold_out else data).to(device)

    def _load_own_data(
        self, task: Task, data: str, client_id: str, device: torch.device, columns: Columns, hold_out: bool
    ) -> ClientData:
        """Return a client's own data on its device, read once a run.

        What changes on the disk counts at the next start.

        Raises:
            OwnDataRefused: where they do not fit the task. The log says why: an error reaches the server, and what
                the owner's files are called and hold is not for it to know.
        """
        try:
            read = load_own_data(task, data, client_id, columns)
            return (with_held_out(read) if hold_out else read).to(device)
        except OwnDataError as error:
            log.error("task %r: %s", task.name, error)
            log.debug("the data were refused", exc_info=True)
            problem = error.problem
        raise OwnDataRefused(client_id, problem)


class TaskLearner(Learner):
    """One client's share of a task, or its own data in the task's form.

    Attributes:
        task: the task.
        data: the client's data on its device.
        parts: which of the model's arrays travel, and which stay.
    """

    can = frozenset({SPLITS, HALVES, RULES, RECORDS, GRADIENT, PERSONAL, PATH})

    def __init__(
        self,
        config: RunConfig,
        of_task: TaskModel,
        data: ClientData,
        client_id: str,
        place: int,
        arithmetic: Arithmetic,
    ) -> None:
        """Take what is loaded.

        Args:
            config: the run's settings.
            of_task: what the clients share.
            data: the client's data on its device.
            client_id: whose draws they are.
            place: the client's number in the task; -1: it has none.
            arithmetic: trains and measures.
        """
        self._of_task, self.data = of_task, data
        self._seed, self._loss_mode, self._hold_out = config.seed, config.loss_mode, config.holds_out
        self._cross_fit = config.cross_fits
        self._keyed = config.dropout_noise == KEYED
        self._client_id, self._place, self._arithmetic = client_id, place, arithmetic
        self.task, self.parts, self.expects = of_task.task, of_task.parts, of_task.layout
        self.model, self.device, self.trainable = of_task.model, of_task.device, of_task.trainable
        self.fingerprint, self.share = of_task.fingerprint, share_of(self.task)
        self.personal, self.trains_personal = self.parts.personal, bool(self.parts.personal_trained)

    @property
    def data_fingerprint(self) -> str:  # type: ignore[override]
        """Of the client's data."""
        return self.data.fingerprint

    @property
    def holds_out(self) -> bool:  # type: ignore[override]
        """Whether the client holds data out: where the run asks for it, and it has enough."""
        return self._hold_out and self.data.held_out is not None

    @property
    def halves(self) -> bool:  # type: ignore[override]
        """Whether the client judges by halves of what it holds out: where the run asks for it, and they suffice."""
        return self._cross_fit and self.data.halves is not None

    def examples(self, split: str) -> int:
        """Return the number of examples of a split.

        Raises:
            ConfigError: for another name.
        """
        if split == keys.HELD_OUT_SPLIT and (held_out := self.data.held_out) is not None:
            return len(held_out)
        if split in keys.HALVES:
            return len(self._half(split))
        if split not in (keys.TRAIN_SPLIT, keys.TEST_SPLIT, keys.HELD_OUT_SPLIT):
            raise ConfigError(f"{keys.SPLIT} = '{split[:40]}' is not allowed: {keys.TRAIN_SPLIT}, {keys.TEST_SPLIT}")
        return self.data.counts[split == keys.TEST_SPLIT]

    def measure(self, arrays: Arrays, split: str, sent: Sent | None = None) -> Evaluation:
        """Return a model's loss and metrics on a split; with dropout on where ``loss-mode = training`` says so."""
        data = self.data.train if split == keys.TRAIN_SPLIT else self.data.test
        if split == keys.HELD_OUT_SPLIT:
            data = self.data.held_out or self.data.train
        elif split in keys.HALVES:
            data, sent = self._half(split), Sent("")  # no pool of all clients' data has halves
        shared, noise = ("" if sent is None or self.personal else sent.model), None
        if self._loss_mode == "training" and split == keys.TRAIN_SPLIT:
            # With noise of its own a client's measurement is like no other's, though the model is the same.
            purpose, server_round = ("requirement", 0) if sent is None else ("loss", sent.server_round)
            shared, noise = "", Noise(self._seed, f"{self._client_id}/{purpose}", server_round, self._keyed)
        request = EvaluateRequest(
            self.task, self.model, self._place, data, arrays, split, shared, noise, self.precision
        )
        return self._arithmetic.evaluate(request)

    def _half(self, name: str) -> Split:
        """Return a half of what the client holds out.

        Raises:
            ConfigError: it has none.
        """
        if (halves := self.data.halves) is None:
            raise ConfigError(f"{keys.SPLIT} = '{name}' is not allowed: this client holds too few examples out")
        return halves[keys.HALVES.index(name)]

    def train(self, arrays: Arrays, job: Job) -> Arrays:
        """Return the model that a local rule trains from another on this client's own data."""
        data = self.data.train
        batches: NDArray[np.int64] | Minibatches | None = job.batches
        if batches is None:
            batches = self._minibatches(job, job.training.steps(len(data)) * job.rule.draws())
        return self._arithmetic.train(
            TrainRequest(self.task, self.model, self._place, data, arrays, job, batches, self._seed, self._client_id)
        )

    def path(self, arrays: Arrays, job: Job, stretches: int) -> Iterator[Arrays]:
        """Yield the models after each of some stretches of a training."""
        drawn = np.asarray(self._minibatches(job, job.training.steps(len(self.data.train))))
        for number, batches in enumerate(np.array_split(drawn, stretches), 1):
            arrays = self.train(arrays, stretch(job, number, batches))
            yield arrays

    def _minibatches(self, job: Job, draws: int) -> Minibatches:
        size, examples = job.training.batch_size, len(self.data.train)
        return Minibatches(self._seed, self._client_id, job.server_round, examples, draws, size, job.purpose)

    def gradient(self, arrays: Arrays, batch: NDArray[np.int64] | None) -> Arrays:
        """Return the gradient of a model's mean training loss.

        It is over all examples where ``batch`` is None.
        """
        request = GradientRequest(self.task, self.model, self._place, self.data.train, arrays, batch)
        return self._arithmetic.gradient(request)

    def initial(self, names: Sequence[str]) -> Arrays:
        """Return arrays of the task's own w_0."""
        return arrays_of(self._of_task.initial, names)

    def card(self, config: RunConfig, **facts: Any) -> ModelCard:
        """Return the card of a model that is kept, with all that is needed to use it."""
        names = tuple(sorted(facts.pop("names")))
        shared = names if self.parts.fixed else ALL
        return ModelCard.of(self.task, config, shared=shared, scaling=self.data.scaling, **facts)
