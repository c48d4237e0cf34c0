"""The data of all virtual clients: loaded once, on one device, one client after another."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fedappeal.protocol.config import ConfigError
from fedappeal.simulation.batched import Examples
from fedappeal.tasks.examples import ClientData, Split, map_parts
from fedappeal.tasks.task import Task


class Pool:
    """All clients' examples.

    Attributes:
        train: the training examples of all clients.
        test: their test examples.
    """

    def __init__(self, task: Task, clients: int, device: torch.device) -> None:
        """Load the data of clients 0..clients-1.

        Raises:
            ConfigError: if the data set cannot be had or shared out.
        """
        loaded = [task.load(k) for k in range(clients)]
        self.train = _joined([data.train for data in loaded], device)
        self.test = _joined([data.test for data in loaded], device)

    def client(self, k: int) -> ClientData:
        """Return one client's data, as views of the pool."""
        return ClientData(self.train.of_client(k), self.test.of_client(k))


def _joined(splits: list[Split], device: torch.device) -> Examples:
    """Return the clients' examples, one after another.

    Raises:
        ConfigError: clients whose examples differ in form, shape or type.
    """
    start = [0, *accumulate(len(split) for split in splits)]

    def merged(parts: Sequence[Tensor]) -> Tensor:
        if len({_kind(part) for part in parts}) > 1:
            k, other = next((k, p) for k, p in enumerate(parts) if _kind(p) != _kind(parts[0]))
            raise ValueError(
                f"client 0 has {parts[0].dtype} of shape {tuple(parts[0].shape[1:])} an example, client {k} has "
                f"{other.dtype} of shape {tuple(other.shape[1:])}"
            )
        whole = torch.empty((start[-1], *parts[0].shape[1:]), dtype=parts[0].dtype, device=device)
        for part, first, after in zip(parts, start, start[1:], strict=False):
            whole[first:after] = part
        return whole

    try:
        return Examples(map_parts(merged, [s.x for s in splits]), map_parts(merged, [s.y for s in splits]), start)
    except ValueError as error:
        raise ConfigError(f"the clients' data cannot be used together: {error}") from None


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape[1:]
