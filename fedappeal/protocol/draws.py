"""Random draws as pure functions of (seed, client, round, purpose).

No generator runs on from one draw to the next, so a client that was restarted, a run that was resumed and the
three runtimes all draw the same numbers.
"""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

TORCH_GENERATOR = threading.RLock()
"""Held while torch's global generator is seeded and drawn from: it is one for all threads of a process."""


DRAWN_AT_ONCE = 2**18
"""Most indices of minibatches that are drawn ahead (2 MB)."""


def draw_seed(seed: int, purpose: str, *, client: str = "", server_round: int = 0) -> int:
    """Return the seed of one draw.

    Args:
        seed: the run's seed.
        purpose: what is drawn, for example ``"batches"``; distinct purposes are independent.
        client: the client-id, where the draw belongs to one client.
        server_round: the round, where the draw belongs to one round (0: before the first).

    Returns:
        An integer in [0, 2**63), fit for numpy's and torch's generators.
    """
    text = "\x1f".join((str(int(seed)), purpose, client, str(int(server_round))))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, *, client: str = "", server_round: int = 0) -> np.random.Generator:
    """Return a fresh generator for one draw; arguments as in `draw_seed`."""
    return np.random.default_rng(draw_seed(seed, purpose, client=client, server_round=server_round))


@dataclass(frozen=True, eq=False)
class Minibatches:
    """The minibatches of one local training, drawn as they are needed.

    Each epoch is a new random order of the examples cut into batches; the last, shorter batch of an epoch is
    filled from the start of the next one, so that every step sees exactly ``batch_size`` examples (or all of
    them, where the client has fewer). `np.asarray` draws all of them.

    Attributes:
        seed: the run's seed.
        client: the client-id.
        server_round: the round; 0 for the requirement's warm-up.
        num_examples: number of training examples, at least 1.
        steps: number of minibatches, at least 0.
        batch_size: examples a minibatch, at least 1.
        purpose: what the batches are for; fine-tuning draws its own.
    """

    seed: int
    client: str
    server_round: int
    num_examples: int
    steps: int
    batch_size: int
    purpose: str = "batches"

    @property
    def shape(self) -> tuple[int, int]:
        """Number of minibatches, and examples in each."""
        return self.steps, min(self.batch_size, self.num_examples)

    def __len__(self) -> int:
        return self.steps

    def blocks(self, most: int = DRAWN_AT_ONCE) -> Iterator[NDArray[np.int64]]:
        """Yield the minibatches in order, some at a time: int64 indices, shape ``(rows, size)``.

        Args:
            most: indices that one block may hold, but for one minibatch that is larger.
        """
        steps, size = self.shape
        rng = generator(self.seed, self.purpose, client=self.client, server_round=self.server_round)
        left = np.empty(0, dtype=np.int64)
        at_once = max(1, most // size)
        for first in range(0, steps, at_once):
            rows = min(at_once, steps - first)
            epochs = -(-(rows * size - len(left)) // self.num_examples)
            stream = np.concatenate([left, *(rng.permutation(self.num_examples) for _ in range(epochs))])
            yield stream[: rows * size].reshape(rows, size).astype(np.int64, copy=False)
            left = stream[rows * size :]

    def rows(self) -> Iterator[NDArray[np.int64]]:
        """Yield one minibatch after another, shape ``(size,)``."""
        for block in self.blocks():
            yield from block

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        """Return all of them, shape ``(steps, size)``."""
        blocks = list(self.blocks(max(1, self.steps) * self.shape[1]))
        drawn: NDArray[np.generic] = blocks[0] if blocks else np.empty((0, self.shape[1]), dtype=np.int64)
        return drawn if dtype is None else drawn.astype(dtype, copy=False)
