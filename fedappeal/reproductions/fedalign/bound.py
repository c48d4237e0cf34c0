r"""FedALIGN, theorem 1 and corollary 2: the priority clients' excess loss against the theorem's bound.

Client k has ``F_k(w) = 1/n sum_i (x_i w - y_i)^2 / 2`` of its own n examples: L and mu are the largest and the least
eigenvalue of the clients' ``1/n sum x x^T``, and all minima are known. Local step t, of one drawn example, has the
theorem's rate ``2 / (mu (t + gamma))``; every E steps the models are put together by Algorithm 1. sigma^2 and G^2 are
the largest mean squares, over all steps and clients, of the gradients' noise and of the gradients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.draws import generator
from fedappeal.reproductions import bounds
from strategies.fedalign.alignment import epsilon_schedule

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LeastSquares:
    """Least squares of clients with equally many examples, the priority clients first.

    Attributes:
        x: shape ``(K, n, d)``.
        y: shape ``(K, n)``.
        priority: number of priority clients; each p_k is one over it.
    """

    x: Floats
    y: Floats
    priority: int

    @property
    def curvatures(self) -> Floats:
        """The clients' second derivatives, shape ``(K, d, d)``."""
        return np.asarray(np.einsum("knd,kne->kde", self.x, self.x) / self.x.shape[1])

    def losses(self, w: Floats) -> Floats:
        """Return every F_k, shape ``(R, K)``, of models ``(R, d)``."""
        return np.asarray(((np.einsum("knd,rd->rkn", self.x, w) - self.y) ** 2).mean(axis=2) / 2)

    def minimum(self, chosen: slice) -> Floats:
        """Return the minimum of the mean loss of some clients, shape ``(d,)``."""
        targets = np.einsum("knd,kn->kd", self.x, self.y) / self.x.shape[1]
        return np.linalg.solve(self.curvatures[chosen].mean(axis=0), targets[chosen].mean(axis=0))

    def heterogeneity(self) -> tuple[float, Floats]:
        """Return Gamma, and Gamma_k of every client that has no priority."""
        common = self.losses(self.minimum(slice(self.priority))[None])[0]
        minima = np.array([self.losses(self.minimum(slice(k, k + 1))[None])[0, k] for k in range(len(self.x))])
        gaps = common - minima
        return float(gaps[: self.priority].mean()), np.asarray(gaps[self.priority :])


class BoundConstants(NamedTuple):
    """Theorem 1's constants: L, mu, sigma^2, G^2, ``|w_0 - w*|^2``, Gamma and E."""

    smoothness: float
    convexity: float
    variance: float
    gradient: float
    distance: float
    heterogeneity: float
    local_steps: int

    @property
    def gamma(self) -> float:
        """The number gamma of the step sizes."""
        return max(8 * self.smoothness / self.convexity, float(self.local_steps))


def bound(of: BoundConstants, steps: int, theta: float, rho: float) -> float:
    """Return equation 6's right side after T steps.

    For theta_T and rho_T of equations 7 and 8.
    """
    ratio = of.smoothness / of.convexity
    drift = of.variance + 8 * (of.local_steps - 1) ** 2 * of.gradient
    first = 2 * ratio / of.convexity * drift + 4 * ratio * of.smoothness * of.distance
    return (first + 12 * ratio**2 * theta * of.heterogeneity) / (steps + of.gamma) + rho


def draw_clients(settings: Mapping[str, Any], seed: int) -> LeastSquares:
    """Draw the clients: of those without priority, half have true models far from the others'."""
    rng = generator(seed, "fedalign-theorem")
    priority, others, d = settings["priority"], settings["others"], settings["size"]
    spread = np.full(priority + others, settings["spread"])
    spread[priority + others // 2 :] = settings["far"]
    models = 1.0 + spread[:, None] * rng.standard_normal((priority + others, d))
    x = rng.standard_normal((priority + others, settings["examples"], d))
    noise = settings["noise"] * rng.standard_normal(x.shape[:2])
    return LeastSquares(x, np.einsum("knd,kd->kn", x, models) + noise, priority)


def run(
    clients: LeastSquares, epsilon: Callable[[int], float], steps: int, local_steps: int, runs: int, seed: int
) -> tuple[Floats, Floats, BoundConstants]:
    """Run FedALIGN from 0; return excess losses, accepted clients and constants.

    Args:
        clients: the clients.
        epsilon: epsilon of a round, from 1.
        steps: T, a multiple of E.
        local_steps: E.
        runs: repetitions.
        seed: of the examples that are drawn.

    Returns:
        After each round the mean excess loss, shape ``(T / E,)``; in each round, who without priority is accepted,
        shape ``(T / E, R, K - P)``; the constants, sigma^2 and G^2 as the run has them.
    """
    total, examples, size = clients.x.shape
    rng, rows, p = generator(seed, "fedalign-steps"), np.arange(total), clients.priority
    curvatures, targets = clients.curvatures, np.einsum("knd,kn->kd", clients.x, clients.y) / examples
    lengths = (clients.x**2).sum(axis=2)  # an example's squared gradient is its residual's square times this
    bent = np.einsum("kn,knd,kne->kde", lengths, clients.x, clients.x) / examples
    tilted = np.einsum("kn,kn,knd->kd", lengths, clients.y, clients.x) / examples
    flat = (lengths * clients.y**2).mean(axis=1)
    best = clients.minimum(slice(p))
    spectrum = np.linalg.eigvalsh(curvatures)
    largest, smallest, far = float(spectrum.max()), float(spectrum.min()), float(best @ best)
    of = BoundConstants(largest, smallest, 0.0, 0.0, far, clients.heterogeneity()[0], local_steps)
    least, w, noise, square = clients.losses(best[None])[0, :p].mean(), np.zeros((runs, size)), 0.0, 0.0
    excess, accepted = list[float](), list[Floats]()
    for t in range(steps):
        if t % local_steps == 0:
            losses = clients.losses(w)
            gap = np.abs(losses[:, p:] - losses[:, :p].mean(axis=1, keepdims=True))
            accepted.append((gap <= epsilon(t // local_steps + 1)).astype(np.float64))
            local = np.repeat(w[:, None], total, axis=1)
        drawn = rng.integers(0, examples, (runs, total))
        x, y = clients.x[rows, drawn], clients.y[rows, drawn]
        squares = np.einsum("rkd,rkd->rk", np.einsum("rkd,kde->rke", local, bent) - 2 * tilted, local) + flat
        gradients = np.einsum("rkd,kde->rke", local, curvatures) - targets
        square = max(square, float(squares.mean(axis=0).max()))
        noise = max(noise, float((squares - (gradients**2).sum(axis=2)).mean(axis=0).max()))
        rate = 2 / (of.convexity * (t + of.gamma))
        local = local - rate * (np.einsum("rkd,rkd->rk", x, local) - y)[..., None] * x
        if (t + 1) % local_steps == 0:
            weights = np.concatenate([np.ones((runs, p)), accepted[-1]], axis=1)
            w = np.einsum("rk,rkd->rd", weights / weights.sum(axis=1, keepdims=True), local)
            excess.append(float(clients.losses(w)[:, :p].mean() - least))
    return np.array(excess), np.array(accepted), of._replace(variance=noise, gradient=square)


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return a row's excess loss and bound by T, and its late decay.

    How far it fell over the last three quarters.
    """
    clients, steps = draw_clients(settings, seed), settings["local-steps"]
    at = np.array(settings["rounds"]) * steps
    rounds = int(settings["rounds"][-1])
    epsilon = epsilon_schedule(settings["schedule"], settings["epsilon"], rounds, settings["decay"], 1.0)
    excess, accepted, of = run(clients, epsilon, int(at[-1]), steps, settings["runs"], seed)
    fractions = accepted / clients.priority
    shares = 1 / (1 + fractions.sum(axis=2))
    bias = (fractions @ clients.heterogeneity()[1]) * shares
    limits, free = list[float](), bound(of, int(at[-1]), 0.0, 0.0)
    for total in at:
        rounds_of = np.arange(1, total) // steps  # tau(i) / E
        theta, rho = (
            float(values.mean(axis=1)[rounds_of].sum()) / (total + of.gamma - 2) for values in (shares, bias)
        )
        limits.append(bound(of, int(total), theta, 2 * of.smoothness / of.convexity * rho))
    measured, fell = excess[np.array(settings["rounds"]) - 1], np.log10(excess[rounds // 4 - 1] / excess[-1])
    return bounds.comparison(at, measured, limits, theta=theta, steered=1 - free / limits[-1], fell=float(fell))
