"""The device that calculates, and copies between it and the host, with as few waits for an accelerator as may be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedappeal.settings.config import ConfigError

HOSTS = {"cpu"}
"""Devices whose tensors are arrays where they are; a copy from another waits for what that calculates."""
QUEUES = {"cuda"}
"""Devices whose driver sets the host's values aside: a copy to them need not wait for what they calculate."""


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


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Return the host's values on a device; one of `QUEUES` may not have them yet."""
    return values.to(device, non_blocking=device.type in QUEUES)


def on_host(tensors: Mapping[Any, Tensor]) -> dict[Any, NDArray[Any]]:
    """Return tensors as arrays by name: an accelerator's by one copy of all of a type."""
    if all(tensor.device.type in HOSTS for tensor in tensors.values()):
        return {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    arrays: dict[Any, NDArray[Any]] = {}
    for kind in {tensor.dtype for tensor in tensors.values()}:
        same = {name: tensor.detach() for name, tensor in tensors.items() if tensor.dtype == kind}
        whole = torch.cat([tensor.reshape(-1) for tensor in same.values()]).cpu()
        parts = torch.split(whole, [tensor.numel() for tensor in same.values()])
        arrays |= {name: part.view(same[name].shape).numpy() for name, part in zip(same, parts, strict=True)}
    return {name: arrays[name] for name in tensors}


class Launched(NamedTuple):
    """Answers to some requests, which a device may still be busy with.

    Attributes:
        tensors: what it calculates, by name.
        read: returns the answers, given the same on the host.
    """

    tensors: Mapping[str, Tensor]
    read: Callable[[Mapping[str, NDArray[Any]]], Sequence[Any]]
