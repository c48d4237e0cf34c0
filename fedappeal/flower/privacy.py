"""Flower's arithmetic of differential privacy: the norm of an update, its clipping, and noise from a given seed."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.differential_privacy import compute_clip_model_update, get_norm

NDArray: TypeAlias = npt.NDArray[Any]

_one_at_a_time = threading.Lock()


def update_norm(trained: Sequence[NDArray], sent: Sequence[NDArray]) -> float:
    """Return the L2 norm of an update.

    Args:
        trained: the arrays of the trained model.
        sent: those of the model that it was trained from, in the same order.
    """
    with np.errstate(invalid="ignore"):  # infinity less infinity: the norm is then no number, which callers check
        return get_norm([np.subtract(after, before) for after, before in zip(trained, sent, strict=True)])


def clip_update(trained: Sequence[NDArray], sent: Sequence[NDArray], norm: float) -> list[NDArray]:
    """Return the model with its update clipped to an L2 norm.

    Arguments as in `update_norm`.

    An update of norm 0 is not allowed: Flower divides by it.
    """
    clipped = list(trained)
    compute_clip_model_update(clipped, list(sent), norm)
    return clipped


def clip_and_noise(
    message: Message, reply: Message, norm: float, sensitivity: float, epsilon: float, delta: float, seed: int
) -> Message:
    """Return a reply clipped by Flower's `LocalDpMod`, with noise drawn from a seed.

    Args:
        message: has the model that was sent, and no other.
        reply: has the trained model, and no other.
        norm: clipping norm, above 0.
        sensitivity: of the model.
        epsilon: privacy budget, above 0.
        delta: probability that the guarantee fails.
        seed: 64 bits. Flower draws from NumPy's global generator, which is put back afterwards.
    """
    nowhere = Context(0, 0, {}, RecordDict(), {})
    with _numpy_seeded(seed):
        return LocalDpMod(norm, sensitivity, epsilon, delta)(message, nowhere, lambda *_: reply)


@contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator during the block, then restore it."""
    with _one_at_a_time:
        before = np.random.get_state()
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        try:
            yield
        finally:
            np.random.set_state(before)
