r"""MaxFL, theorem 3.1: the squared gradient norm of the objective against its bound.

The bound is that of the proof for partial participation (appendix B.3): its displayed parts (105), (109), (116) and
(120), put together with ``epsilon = m``. With ``a = tau eta_l eta_g`` and ``nu = L_s + L_c^2 / 4`` a round gives

    c E|grad|^2 <= E[F(t) - F(t+1)] + a (L_s^2 eta_l^2 sigma^2 tau + 4 D kappa'^2)
                   + nu a^2 (sigma^2 / (m tau) + 6 L_s^2 eta_l^2 sigma^2 tau + 24 D kappa'^2 + A_2)
    c = a/4 (1 - 8 D beta'^2) - nu a^2 (3 + 24 D beta'^2),   D = eta_l^2 tau^2 L_s^2
    A_2 = 12 (M - m) L_c^2 / (m (M - 1)),   beta'^2 = 2 beta^2,   kappa'^2 = 4 beta^2 L_c^2 + kappa^2     lemma B.1

(120) prints A_2 with ``tau^2`` in its denominator; the theorem's third term would then be ``1 / sqrt(tau^3 T m)``.
Without it the above gives ``sqrt(tau / (T m))``, as printed. All constants are the data's, and hold for every model.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedappeal.reproductions import bounds
from fedappeal.reproductions.maxfl.logistic import LogitData, draw_clients, squared_gradients
from strategies.maxfl import theorem_step_sizes


class Constants(NamedTuple):
    """L_s, L_c, sigma_g^2, kappa^2 (with beta = 1), and w_0's suboptimality bound.

    The last is the objective of w_0 less a lower bound of its infimum.
    """

    smoothness: float
    lipschitz: float
    variance: float
    dissimilarity: float
    height: float


def constants(clients: LogitData) -> Constants:
    """Return constants valid for every model of logistic losses.

    Their slope in each example is below 1.
    """
    signed = clients.signed
    norms = np.linalg.norm(signed, axis=2)
    moments = np.einsum("mnd,mne->mde", signed, signed) / signed.shape[1]
    least = 1.0 / (1.0 + np.exp(clients.rho))  # sigmoid(-rho_k): no loss is below 0
    start = 1.0 / (1.0 + np.exp(clients.rho - clients.losses(np.zeros((1, signed.shape[2])))[0]))
    return Constants(
        float(np.linalg.eigvalsh(moments).max()) / 4,
        float(norms.mean(axis=1).max()),
        float((norms**2).mean(axis=1).max()),
        float((norms.mean(axis=1) ** 2).mean()),
        float((start - least).mean()),
    )


def bound(of: Constants, rounds: int, local_steps: int, chosen: int, clients: int) -> float:
    """Return the bound on the mean squared gradient norm.

    Infinite where T is not sufficiently large.

    Args:
        of: the constants.
        rounds: T.
        local_steps: tau.
        chosen: m.
        clients: M.
    """
    sizes = theorem_step_sizes(rounds, local_steps, chosen)
    eta = sizes.local_lr or 0.0
    a, nu = local_steps * eta * sizes.server_lr, of.smoothness + of.lipschitz**2 / 4
    drift = (eta * local_steps * of.smoothness) ** 2
    c = a / 4 * (1 - 16 * drift) - nu * a**2 * (3 + 48 * drift)
    kappa = 4 * of.lipschitz**2 + of.dissimilarity
    local = (of.smoothness * eta) ** 2 * of.variance * local_steps
    sampled = 12 * (clients - chosen) * of.lipschitz**2 / (chosen * (clients - 1))
    noise = of.variance / (chosen * local_steps) + 6 * local + 24 * drift * kappa + sampled
    total = of.height / rounds + a * (local + 4 * drift * kappa) + nu * a**2 * noise
    return total / c if c > 0 else float("inf")


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return a row's mean squared gradient norm and bound by T, and the least.

    The least norm is that at the last T.
    """
    tau, chosen, total = settings["local-steps"], settings["chosen"], settings["clients"]
    clients = draw_clients(total, settings["examples"], settings["size"], settings["spread"], seed)
    at = {rounds: theorem_step_sizes(rounds, tau, chosen) for rounds in settings["rounds"]}
    batch, runs = settings["batch"], settings["runs"]
    norms = [squared_gradients(clients, sizes, t, tau, chosen, batch, runs, seed) for t, sizes in at.items()]
    limits = [bound(constants(clients), rounds, tau, chosen, total) for rounds in settings["rounds"]]
    means = [float(each_round.mean()) for each_round in norms]
    return bounds.comparison(settings["rounds"], means, limits, least=float(norms[-1].min()))
