"""The noise inside a model (dropout), as a pure function of who calculates what, and when.

A dropout mask is drawn by a counter (Philox; Salmon et al., SC 2011): its key is (seed, client, purpose, round), its
counter (step, layer, example). So one client alone, clients side by side, workers and devices drop the same units.
Everything else that a model draws comes from torch's generator, which is seeded by the same key: it is the same
wherever clients train one by one.
"""

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from client.training.devices import on_device
from fedappeal.protocol.draws import TORCH_GENERATOR, draw_seed

KEYED = "keyed"
"""Value of the setting ``dropout-noise``: dropout is drawn by counter."""


class Noise(NamedTuple):
    """Arguments of which the noise of one calculation is a pure function.

    Attributes:
        seed: the run's seed.
        client: whose noise it is, and what for: distinct names draw distinct noise.
        server_round: counted from 1; 0 outside a round.
        keyed: whether dropout is drawn by counter; else it comes from torch's generator, as all other draws.
    """

    seed: int
    client: str
    server_round: int
    keyed: bool = True

    def key(self, purpose: str) -> int:
        """Return the seed of these draws."""
        return draw_seed(self.seed, purpose, client=self.client, server_round=self.server_round)


@contextmanager
def seeded_noise(noise: Noise, device: torch.device) -> Iterator[None]:
    """Make what torch's generator gives inside a pure function of an argument."""
    number = noise.key("noise")
    # Not `torch.manual_seed`: it seeds every accelerator too, and records a stack trace each time.
    with TORCH_GENERATOR:
        if device.type == "cuda":
            with torch.random.fork_rng(devices=[device]):
                torch.default_generator.manual_seed(number)
                torch.cuda.manual_seed(number)
                yield
            return
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(number)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)


class DropoutMasks:
    """The dropout masks of one calculation, or of several clients' side by side.

    Args:
        noises: one a client.
        side_by_side: whether several clients' forward passes are one.
    """

    def __init__(self, noises: Sequence[Noise], side_by_side: bool = False) -> None:
        self.side_by_side = side_by_side
        self._keys = [np.array([noise.key("dropout"), 0], np.uint64) for noise in noises]
        self._step = self._layer = 0

    @functools.cached_property
    def _counter(self) -> tuple[np.random.Philox, np.random.Generator, Any]:
        """A counter, what draws by it, and its state before anything was drawn."""
        bits = np.random.Philox(0)
        return bits, np.random.Generator(bits), bits.state

    def begin(self, step: int) -> None:
        """Begin a forward pass, counted from 0."""
        self._step, self._layer = step, 0

    def scaled(self, shape: Sequence[int], rate: float, device: torch.device) -> Tensor:
        """Return the dropout masks of the next layer.

        0 where a unit is dropped, else ``1 / (1 - rate)``.

        Args:
            shape: ``(clients, examples, ...)``: the first of the clients; their first examples' units are the same
                whatever comes after them.
            rate: 0 <= rate < 1.
            device: where they go.
        """
        drawn, counter = np.empty(tuple(shape), np.float32), np.array([0, self._layer, self._step, 0], np.uint64)
        bits, generator, fresh = self._counter
        for of_client, key in zip(drawn, self._keys, strict=False):
            bits.state = fresh | {"state": {"counter": counter, "key": key}}
            generator.random(out=of_client, dtype=np.float32)
        self._layer += 1
        return on_device(torch.from_numpy(drawn).ge_(rate).div_(1 - rate), device)


_ACTIVE = threading.local()
torch_dropout = functional.dropout
"""PyTorch's own."""


def active_masks() -> DropoutMasks | None:
    """Return the masks by which this thread drops units.

    None where torch's generator drops them.
    """
    return getattr(_ACTIVE, "masks", None)


@contextmanager
def keyed_dropout(noises: Sequence[Noise], side_by_side: bool = False) -> Iterator[None]:
    """Drop units inside by masks of these clients, in this thread; arguments as `DropoutMasks`."""
    before = active_masks()
    # nn.Dropout, PyTorch's attention and models' own code find the function by this name.
    functional.dropout = dropout
    _ACTIVE.masks = DropoutMasks(noises, side_by_side) if noises[0].keyed else None
    try:
        yield
    finally:
        _ACTIVE.masks = before


def begin_forward_pass(step: int) -> None:
    """Say that the forward pass of a step begins, counted from 0: its layers draw from there."""
    if (masks := active_masks()) is not None:
        masks.begin(step)


@functools.wraps(torch_dropout)
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return what `torch.nn.functional.dropout` returns, by this thread's masks where there are any."""
    masks = active_masks()
    if masks is None or not training or not 0 < p < 1:
        return torch_dropout(input, p, training, inplace)
    if masks.side_by_side:
        dropped: Tensor = _SideBySide.apply(input, p, masks)
        return input.copy_(dropped) if inplace else dropped
    mask = masks.scaled((1, *input.shape), p, input.device)[0]
    return input.mul_(mask) if inplace else input * mask


class _SideBySide(torch.autograd.Function):
    """Dropout inside `torch.vmap` over clients; autograd sees the product that ``vmap`` calculates."""

    @staticmethod
    def forward(x: Tensor, rate: float, masks: DropoutMasks) -> Tensor:
        raise RuntimeError("drops units of a tensor that all clients share")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, rate: float, masks: DropoutMasks
    ) -> tuple[Tensor, int]:
        """Return all clients' units, the clients as first axis."""
        assert in_dims[0] is not None
        x = x.movedim(in_dims[0], 0)
        return x * masks.scaled(x.shape, rate, x.device), 0
