"""Tasks, data and models shared by the clients of one process."""

import copy
import logging
from collections.abc import Callable
from functools import lru_cache, partial
from weakref import proxy

import torch
from torch import nn

from client.data.own_data import load_own_data
from client.data.refused import OwnDataError, OwnDataRefused
from client.limits.room import Room
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.plugins import Allowed
from fedappeal.data.columns import Columns
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import ClientData, with_held_out
from fedappeal.tasks.share import Parts, parts_of, share_of
from fedappeal.tasks.task import Task

log = logging.getLogger("fedappeal.client")


def pick_device(wanted: str) -> torch.device:
    """Return the device to train on; ``auto`` takes CUDA where it is available.

    Raises:
        ConfigError: if the device was named and is not there.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = wanted.partition(":")
    devices = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }[kind]
    if int(number or 0) >= devices:
        raise ConfigError(f"device = '{wanted}' is not allowed: PyTorch finds no such device here (auto, cpu)")
    return torch.device(wanted)


class Cache:
    """Tasks, data and models, each loaded once; one cache a federation.

    Attributes:
        room: the owner's, which is asked before anything large is loaded; None: there are no limits.
    """

    room: Room | None = None

    def __init__(
        self, task: Task | None = None, strategy_of: Callable[[RunConfig], ClientSide | None] = lambda config: None
    ) -> None:
        """Begin.

        Args:
            task: in place of the one that a run's settings name.
            strategy_of: makes a run's strategy in place of the one that its settings name; None: that one.
        """
        self.strategy_of = strategy_of
        self._given = task
        weak = proxy(self)  # in a cycle, what is loaded would stay until the collector looks at the oldest objects
        self.task = lru_cache(maxsize=4)(partial(Cache._task, weak))
        self.data = lru_cache(maxsize=256)(partial(Cache._data, weak))
        self.own_data = lru_cache(maxsize=2)(partial(Cache._own_data, weak))
        self.initial = lru_cache(maxsize=4)(partial(Cache._initial, weak))
        self.parts = lru_cache(maxsize=4)(partial(Cache._parts, weak))
        self.scratch_model = lru_cache(maxsize=4)(partial(Cache._scratch_model, weak))

    def clear(self) -> None:
        """Let go of everything."""
        for loaded in (self.task, self.data, self.own_data, self.initial, self.parts, self.scratch_model):
            loaded.cache_clear()

    def _task(self, settings: TaskSettings, data_dir: str, allowed: Allowed) -> Task:
        """Return the task."""
        return self._given or load_task(settings, data_dir, allowed)

    def _data(self, task: Task, partition_id: int, device: torch.device, hold_out: bool) -> ClientData:
        """Return one client's share of the task's data, on its device."""
        if self.room is not None:
            self.room.check_data(task, partition_id)
        data = task.load(partition_id)
        return (with_held_out(data) if hold_out else data).to(device)

    def _own_data(
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

    def _initial(self, task: Task, seed: int) -> nn.Module:
        """Return w_0; it is not to be changed."""
        if self.room is not None:
            self.room.check_model(task, seed)
        model = task.initial_model(seed)
        if self.room is not None:
            self.room.check_built(task, model)
        return model

    def _parts(self, task: Task, seed: int) -> Parts:
        """Return which arrays of the task's model travel, and which stay."""
        return parts_of(self.initial(task, seed), share_of(task))

    def _scratch_model(self, task: Task, seed: int, device: torch.device) -> nn.Module:
        """Return a model of the task on a device; its values do not last."""
        return copy.deepcopy(self.initial(task, seed)).to(device)
