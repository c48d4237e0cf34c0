"""A task whose model has any size, and whose data are next to nothing."""

import os

import torch
from torch import nn

from fedappeal.tasks.models import mlp, seeded
from fedappeal.tasks.task import ClientData, Split, Task

WIDTH = "FEDAPPEAL_BENCHMARK_WIDTH"
"""Environment variable: the width of `Stack`'s layers."""
LAYERS = 8


class Stack(Task):
    """Linear layers of one width, and eight examples of noise a client."""

    name = "stack"
    input_shape = (16,)
    num_classes = 10

    def initial_model(self, seed: int) -> nn.Module:
        """Return w_0."""
        with seeded(seed):
            return mlp(16, self.num_classes, hidden=[int(os.environ[WIDTH])] * (LAYERS + 1), dropout=None)

    def load(self, client: int) -> ClientData:
        """Return a client's examples."""
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(client))
        return ClientData(Split(x, torch.arange(8)), Split(x, torch.arange(8)))
