"""Clients' models as tensors with a leading axis of clients, and back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedappeal.protocol.packing import Arrays
from fedappeal.simulation.forms.batched import Clients
from fedappeal.tasks.share import names_of


@dataclass(frozen=True)
class ModelParts:
    """What a model's arrays are.

    Attributes:
        trained: names of the parameters that are trained, in the model's order.
        fixed: names of frozen parameters and buffers.
    """

    trained: Sequence[str]
    fixed: Sequence[str]

    @classmethod
    def of(cls, module: nn.Module) -> "ModelParts":
        """Return a model's parts."""
        trained = [name for name, p in module.named_parameters() if p.requires_grad]
        return cls(trained, [name for name in names_of(module) if name not in trained])

    def stacked(self, models: Sequence[Arrays], device: torch.device) -> Clients:
        """Return clients' models side by side; what is not trained and equal is there once."""
        trained = {name: _one_tensor([arrays[name] for arrays in models], device) for name in self.trained}
        differing, shared = {}, {}
        for name in filter(models[0].__contains__, self.fixed):  # what is never sent is the module's own
            arrays = [model[name] for model in models]
            if all(_same(array, arrays[0]) for array in arrays):
                shared[name] = torch.from_numpy(np.array(arrays[0])).to(device)
            else:
                differing[name] = _one_tensor(arrays, device)
        return Clients(trained, differing, shared)

    def given_back(
        self, trained: Mapping[str, Tensor], places: Sequence[int], models: Sequence[Arrays]
    ) -> list[Arrays]:
        """Return each client's model after training.

        Args:
            trained: the trained parameters, ``(clients, *shape)`` by name.
            places: which client each place of them holds.
            models: what the clients began with, in the clients' order.
        """
        ordered: list[Arrays] = [{}] * len(places)
        for k, new in zip(places, arrays_of_places(trained), strict=True):
            ordered[k] = {name: new.get(name, before) for name, before in models[k].items()}
        return ordered


def arrays_of_places(tensors: Mapping[str, Tensor]) -> Iterator[Arrays]:
    """Yield the arrays of each place."""
    on_cpu = {name: values.cpu().numpy() for name, values in tensors.items()}
    for place in range(len(next(iter(on_cpu.values())))):
        yield {name: values[place] for name, values in on_cpu.items()}


def _one_tensor(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> Tensor:
    if all(a is arrays[0] for a in arrays):
        one = torch.from_numpy(np.array(arrays[0])).to(device)
        return one.expand(len(arrays), *one.shape).clone()
    return torch.from_numpy(np.stack(arrays)).to(device)


def _same(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    return a is b or np.array_equal(a, b)
