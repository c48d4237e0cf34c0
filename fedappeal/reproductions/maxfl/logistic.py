r"""MaxFL's rounds on logistic regression in NumPy, where every gradient is known exactly (theorem 3.1).

Client k has examples ``a_i`` of norm at most 1 and labels ``y_i = -1, 1``::

    F_k(w) = mean_i log(1 + exp(-y_i a_i w))        L_c = 1, L_s = 1/4: theorem 3.1's assumption 3.1 holds
    gradient of the objective = 1/M sum_k q_k grad F_k(w)                                    equation 4

The clients' true models lie around a common one. Each requires rho_k = F_k after `SOLO` full gradient steps alone.
Several repetitions of a run are done at once, on the same data: arrays begin with them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.draws import generator
from strategies.maxfl import StepSizes

Floats = NDArray[np.float64]

SOLO, SOLO_RATE = 100, 4.0
"""Gradient steps that a client trains alone, and their learning rate, 1 / L_s."""


@dataclass(frozen=True)
class LogitData:
    """The clients' data.

    Attributes:
        signed: each example times its label, shape ``(M, N, d)``.
        rho: what each requires, shape ``(M,)``.
    """

    signed: Floats
    rho: Floats

    def losses(self, w: Floats) -> Floats:
        """Return every F_k, shape ``(R, M)``, for models ``(R, d)``."""
        return np.asarray(np.logaddexp(0.0, -np.einsum("mnd,rd->rmn", self.signed, w)).mean(axis=2))

    def weights(self, w: Floats) -> Floats:
        """Return every q_k, shape ``(R, M)``."""
        decay = np.exp(-np.abs(self.losses(w) - self.rho))
        return np.asarray(decay / (1.0 + decay) ** 2)

    def squared_gradient(self, w: Floats) -> Floats:
        """Return the squared norm of the gradient of equation 3's objective, shape ``(R,)``."""
        pull = 1.0 / (1.0 + np.exp(np.einsum("mnd,rd->rmn", self.signed, w)))
        gradients = -np.einsum("rmn,mnd->rmd", pull, self.signed) / self.signed.shape[1]
        return np.asarray(((self.weights(w)[..., None] * gradients).mean(axis=1) ** 2).sum(axis=1))


def draw_clients(clients: int, examples: int, size: int, spread: float, seed: int) -> LogitData:
    """Draw the clients' data.

    Args:
        clients: M.
        examples: of each.
        size: of the model, d.
        spread: how far the clients' true models lie from the common one, in standard deviations of that.
        seed: of the draw.
    """
    rng = generator(seed, "maxfl-theorem")
    x = rng.standard_normal((clients, examples, size))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=2, keepdims=True))
    models = 3.0 * (rng.standard_normal(size) + spread * rng.standard_normal((clients, size)))
    chance = 1.0 / (1.0 + np.exp(-np.einsum("mnd,md->mn", x, models)))
    signed = x * np.where(rng.random((clients, examples)) < chance, 1.0, -1.0)[..., None]
    alone = np.zeros((clients, size))
    for _ in range(SOLO):
        pull = 1.0 / (1.0 + np.exp(np.einsum("mnd,md->mn", signed, alone)))
        alone += SOLO_RATE * np.einsum("mn,mnd->md", pull, signed) / examples
    rho = np.logaddexp(0.0, -np.einsum("mnd,md->mn", signed, alone)).mean(axis=1)
    return LogitData(signed, np.asarray(rho))


def local_updates(
    clients: LogitData, w: Floats, chosen: NDArray[np.int64], batches: NDArray[np.int64], local_lr: float
) -> Floats:
    """Return the updates of the chosen clients, shape ``(R, m, d)``: equation 5.

    Args:
        clients: all clients.
        w: global models, shape ``(R, d)``.
        chosen: clients of each repetition, shape ``(R, m)``.
        batches: examples of each local step, shape ``(R, m, tau, batch)``.
        local_lr: eta_l.
    """
    local = np.repeat(w[:, None, :], chosen.shape[1], axis=1)
    for step in range(batches.shape[2]):
        signed = clients.signed[chosen[..., None], batches[:, :, step]]
        pull = 1.0 / (1.0 + np.exp((signed @ local[..., None])[..., 0]))
        local = local + local_lr * (pull[..., None, :] @ signed)[..., 0, :] / signed.shape[2]
    return np.asarray(local - w[:, None, :])


def squared_gradients(
    clients: LogitData, sizes: StepSizes, rounds: int, local_steps: int, chosen: int, batch: int, runs: int, seed: int
) -> Floats:
    """Return the mean squared gradient norm before each round, shape ``(T,)``.

    The mean is over repetitions; w_0 is 0.

    Args:
        clients: all clients.
        sizes: the step sizes; the local one is given.
        rounds: T.
        local_steps: tau.
        chosen: m, drawn without replacement.
        batch: examples of a local step, drawn with replacement; 0: all of them, nothing is drawn.
        runs: repetitions.
        seed: of the draws.
    """
    total, examples, size = clients.signed.shape
    rng, w, norms = generator(seed, f"maxfl-theorem-{rounds}"), np.zeros((runs, size)), np.empty(rounds)
    rows = np.arange(runs)[:, None]
    for number in range(rounds):
        norms[number] = clients.squared_gradient(w).mean()
        picked = np.argsort(rng.random((runs, total)), axis=1)[:, :chosen]
        shape = (runs, chosen, local_steps)
        if batch:
            batches = rng.integers(0, examples, (*shape, batch))
        else:
            batches = np.broadcast_to(np.arange(examples), (*shape, examples))
        updates = local_updates(clients, w, picked, batches, sizes.local_lr or 0.0)
        q = clients.weights(w)[rows, picked]
        step = sizes.server_lr / (q.sum(axis=1) + sizes.stabilizer)
        w = w + step[:, None] * (q[..., None] * updates).sum(axis=1)
    return norms
