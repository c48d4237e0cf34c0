"""Random draws as pure functions of (seed, client, round, purpose).

No generator runs on from one draw to the next, so a client that was restarted, a run that was resumed and the
three runtimes all draw the same numbers.
"""

import hashlib
import threading

import numpy as np
from numpy.typing import NDArray

TORCH_GENERATOR = threading.RLock()
"""Held while torch's global generator is seeded and drawn from: it is one for all threads of a process."""


def draw_seed(seed: int, purpose: str, *, client: str = "", server_round: int = 0) -> int:
    """Derive the seed of one draw.

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


def batch_indices(
    seed: int,
    client: str,
    server_round: int,
    num_examples: int,
    steps: int,
    batch_size: int,
    purpose: str = "batches",
) -> NDArray[np.int64]:
    """Draw the minibatches of one client's local training.

    Each epoch is a new random order of the examples cut into batches; the last, shorter batch of an epoch is
    filled from the start of the next one, so that every step sees exactly ``batch_size`` examples (or all of
    them, where the client has fewer).

    Args:
        seed: the run's seed.
        client: the client-id.
        server_round: the round; 0 for the requirement's warm-up.
        num_examples: number of training examples, at least 1.
        steps: number of local steps, at least 0.
        batch_size: examples a step, at least 1.
        purpose: what the batches are for; fine-tuning draws its own.

    Returns:
        int64 indices into the training examples, shape ``(steps, min(batch_size, num_examples))``.
    """
    size = min(batch_size, num_examples)
    rng = generator(seed, purpose, client=client, server_round=server_round)
    epochs = -(-steps * size // num_examples) if steps else 0
    order = [rng.permutation(num_examples) for _ in range(epochs)]
    stream = np.concatenate(order) if order else np.empty(0, dtype=np.int64)
    return stream[: steps * size].reshape(steps, size).astype(np.int64, copy=False)
