"""The data of all virtual clients: loaded once, on one device, one client after another."""

from itertools import accumulate

import torch

from fedappeal.simulation.batched import Examples
from fedappeal.tasks.task import ClientData, Split, Task


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
        return ClientData(_part(self.train, k), _part(self.test, k))


def _joined(splits: list[Split], device: torch.device) -> Examples:
    start = [0, *accumulate(len(split) for split in splits)]
    x = torch.empty((start[-1], *splits[0].x.shape[1:]), device=device)
    y = torch.empty(start[-1], dtype=torch.int64, device=device)
    for split, first, after in zip(splits, start, start[1:], strict=False):
        x[first:after], y[first:after] = split.x, split.y
    return Examples(x, y, start)


def _part(examples: Examples, k: int) -> Split:
    rows = slice(examples.start[k], examples.start[k + 1])
    return Split(examples.x[rows], examples.y[rows])
