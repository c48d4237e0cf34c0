"""The data of all virtual clients on one device.

All are loaded at the start, or each when it is first needed.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from fedappeal.protocol.keys import HELD_OUT_SPLIT, TRAIN_SPLIT
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.forms.batched import Examples
from fedappeal.tasks.examples import ClientData, Split, map_parts, tensors_of, with_held_out
from fedappeal.tasks.task import Task

KEPT = 4096
"""Clients whose data are kept, at most, where each is loaded when it is needed."""
KEPT_BYTES = 1 << 30
"""Bytes that these data may take."""
MANY = 1000
"""Clients of a run up to which all are loaded at the start: a batch of clients then needs no copy of their data."""
FEW = 4
"""With more, each is loaded when it is needed where at most one in this many is asked a round."""


class ClientsData(Protocol):
    """The data of all virtual clients.

    Attributes:
        task: loads them.
        device: where they are.
    """

    task: Task
    device: torch.device

    def client(self, k: int) -> ClientData:
        """Return one client's data."""

    def examples(self, split: str, of_clients: Mapping[int, Split]) -> Examples:
        """Return a pool of examples that includes those of several clients.

        Args:
            split: ``train``, ``held-out`` or ``test``.
            of_clients: the examples of this split, by client, as `client` gave them.
        """


def clients_data(config: RunConfig, task: Task, clients: int, device: torch.device) -> ClientsData:
    """Return the data of clients 0..clients-1.

    Loaded when needed, where few clients are needed each round.

    Raises:
        ConfigError: if the data set cannot be had or shared out.
    """
    few = 0 < config.clients_per_round * FEW <= config.clients and config.evaluate_every != 1
    if clients > MANY and few and _tells_counts(task) and task.counts(0) is not None:
        return LazyPool(task, device, config.holds_out)
    return Pool(task, range(clients), device, config.holds_out)


def _tells_counts(task: Task) -> bool:
    """Whether a task's `counts` belongs to its `load`, which a subclass may have overridden alone."""
    classes = type(task).__mro__
    counts, load = (next(k for k, kind in enumerate(classes) if name in vars(kind)) for name in ("counts", "load"))
    return counts <= load


class Pool:
    """All clients' examples, loaded at the start.

    Attributes:
        task: loads them.
        device: where they are.
        train: the training examples of all clients.
        test: their test examples.
        held_out: what they hold out of their training data; None: nothing.
    """

    def __init__(self, task: Task, clients: Sequence[int], device: torch.device, hold_out: bool = False) -> None:
        """Load the clients' data.

        Args:
            task: loads them.
            clients: their numbers; others have no data here.
            device: where they go.
            hold_out: whether clients hold a third of their training data out.

        Raises:
            ConfigError: if the data set cannot be had or shared out.
        """
        loaded = [_load(task, k, hold_out) for k in clients]
        self.task, self.device = task, device
        self.train = _examples_of([data.train for data in loaded], device, clients)
        self.test = _examples_of([data.test for data in loaded], device, clients)
        parts = [data.train.take(slice(0, 0)) if data.held_out is None else data.held_out for data in loaded]
        self.held_out = _examples_of(parts, device, clients) if hold_out else None
        self._scalings = {k: data.scaling for k, data in zip(clients, loaded, strict=True) if data.scaling}

    def client(self, k: int) -> ClientData:
        """Return one client's data, as views of the pool."""
        held_out = None if self.held_out is None else self.held_out.of_client(k)
        parts = self.train.of_client(k), self.test.of_client(k), held_out or None
        return ClientData(*parts, scaling=self._scalings.get(k))

    def examples(self, split: str, of_clients: Mapping[int, Split]) -> Examples:
        """Return the pool of all clients' examples."""
        if split == HELD_OUT_SPLIT and self.held_out is not None:
            return self.held_out
        return self.train if split == TRAIN_SPLIT else self.test


class LazyPool:
    """A pool that loads clients when needed, and keeps the latest.

    Attributes:
        device: where they are.
        task: loads them.
        hold_out: whether clients hold a third of their training data out.
    """

    def __init__(self, task: Task, device: torch.device, hold_out: bool = False) -> None:
        """Begin with none; the task tells `counts`."""
        self.device, self.task, self.hold_out = device, task, hold_out
        self._kept: OrderedDict[int, ClientData] = OrderedDict()
        self._bytes = 0

    def client(self, k: int) -> ClientData:
        """Return one client's data, not loaded yet."""
        return cast(ClientData, _Later(self, k))

    def examples(self, split: str, of_clients: Mapping[int, Split]) -> Examples:
        """Return the clients' examples, one client after another (`ClientsData`)."""
        return _examples_of(list(of_clients.values()), self.device, list(of_clients))

    def loaded(self, k: int) -> ClientData:
        """Return one client's data.

        Raises:
            ConfigError: they cannot be read, or are not as many as the task tells.
        """
        if (data := self._kept.get(k)) is not None:
            self._kept.move_to_end(k)
            return data
        data = _load(self.task, k, self.hold_out).to(self.device)
        trained, tested = data.counts
        counts = trained + (len(data.held_out) if data.held_out is not None else 0), tested
        if (announced := self.task.counts(k)) not in (None, counts):
            raise ConfigError(
                f"task = '{self.task.settings.task}': client {k} has {counts} examples to train and test, its "
                f"counts tell {announced}"
            )
        self._kept[k] = data
        self._bytes += _bytes(data)
        while len(self._kept) > KEPT or (self._bytes > KEPT_BYTES and len(self._kept) > 1):
            self._bytes -= _bytes(self._kept.popitem(last=False)[1])
        return data


class _Later:
    """One client's data, loaded at the first access."""

    __slots__ = ("_client", "_pool")

    def __init__(self, pool: LazyPool, client: int) -> None:
        self._pool, self._client = pool, client

    @property
    def counts(self) -> tuple[int, int]:
        # How many are held out depends on which inputs are equal.
        announced = None if self._pool.hold_out else self._pool.task.counts(self._client)
        return self._pool.loaded(self._client).counts if announced is None else announced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool.loaded(self._client), name)


def _load(task: Task, k: int, hold_out: bool) -> ClientData:
    data = task.load(k)
    return with_held_out(data) if hold_out else data


def _bytes(data: ClientData) -> int:
    """Return the size of a client's tensors."""
    structures = (part for split in data.splits for part in (split.x, split.y))
    return sum(tensor.nbytes for structure in structures for _, tensor in tensors_of(structure))


def _examples_of(splits: list[Split], device: torch.device, clients: Sequence[int]) -> Examples:
    """Return clients' examples, one client after another.

    Args:
        splits: the examples of each.
        device: where they go.
        clients: whose they are; a range is 0, 1, 2 and so on.

    Raises:
        ConfigError: clients whose examples differ in form, shape or type.
    """
    places = None if isinstance(clients, range) else {client: place for place, client in enumerate(clients)}
    start = [0, *accumulate(len(split) for split in splits)]

    def merged(parts: Sequence[Tensor]) -> Tensor:
        if len({_kind(part) for part in parts}) > 1:
            k, other = next((k, p) for k, p in enumerate(parts) if _kind(p) != _kind(parts[0]))
            raise ValueError(
                f"client {clients[0]} has {parts[0].dtype} of shape {tuple(parts[0].shape[1:])} an example, client "
                f"{clients[k]} has {other.dtype} of shape {tuple(other.shape[1:])}"
            )
        whole = torch.empty((start[-1], *parts[0].shape[1:]), dtype=parts[0].dtype, device=device)
        for part, first, after in zip(parts, start, start[1:], strict=False):
            whole[first:after] = part
        return whole

    try:
        x, y = (map_parts(merged, list(parts)) for parts in ([s.x for s in splits], [s.y for s in splits]))
        return Examples(x, y, start, places)
    except ValueError as error:
        raise ConfigError(f"the clients' data cannot be used together: {error}") from None


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape[1:]
