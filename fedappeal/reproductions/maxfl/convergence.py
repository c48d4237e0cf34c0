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
from fedappeal.reproductions.maxfl.logistic import Clients, draw_clients, squared_gradients
from fedappeal.studies.experiment import Arm, Experiment, Quick
from fedappeal.views.comparison.measures import Measure, last
from strategies.maxfl import theorem_step_sizes

_RUNS = 8
_ROUNDS = (512, 1024, 2048, 4096, 8192)


class Constants(NamedTuple):
    """L_s, L_c, sigma_g^2, kappa^2 (with beta = 1), and the objective of w_0 less a lower bound of its infimum."""

    smoothness: float
    lipschitz: float
    variance: float
    dissimilarity: float
    height: float


def constants(clients: Clients) -> Constants:
    """Return constants that hold for every model: of logistic losses, whose slope in each example is below 1."""
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
    """Return the bound on the mean squared gradient norm; infinite where T is not sufficiently large.

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
    """Return a row's mean squared gradient norm and its bound for each T, and the least norm at the last."""
    tau, chosen, total = settings["local-steps"], settings["chosen"], settings["clients"]
    clients = draw_clients(total, settings["examples"], settings["size"], settings["spread"], seed)
    at = {rounds: theorem_step_sizes(rounds, tau, chosen) for rounds in settings["rounds"]}
    batch, runs = settings["batch"], settings["runs"]
    norms = [squared_gradients(clients, sizes, t, tau, chosen, batch, runs, seed) for t, sizes in at.items()]
    limits = [bound(constants(clients), rounds, tau, chosen, total) for rounds in settings["rounds"]]
    means = [float(each_round.mean()) for each_round in norms]
    return bounds.comparison(settings["rounds"], means, limits, least=float(norms[-1].min()))


def _row(name: str, local_steps: int, chosen: int, first: int = 0) -> Arm:
    return Arm(name, {"local-steps": local_steps, "chosen": chosen, "rounds": list(_ROUNDS[first:])})


_ARMS = (
    _row("tau = 5, m = 5 of 20", 5, 5),
    _row("tau = 1, m = 5 of 20", 1, 5),
    _row("tau = 5, all 20 clients", 5, 20, first=2),
)

EXPERIMENTS = (
    Experiment(
        name="maxfl-theorem31",
        title="MaxFL: the gradient of its objective against the theorem's bound",
        source="MaxFL, theorem 3.1",
        claim="With the theorem's step sizes the mean squared gradient norm of the objective over T rounds, and so "
        "the least, is bounded by terms of which the largest fall as T^(-1/2), for a sufficiently large T.",
        settings={"clients": 20, "examples": 40, "size": 2, "spread": 0.5, "batch": 1, "runs": _RUNS},
        arms=_ARMS,
        measures=(
            *bounds.columns("mean squared gradient norm"),
            Measure("first", "the same at the smallest T", last("first"), better="lower", digits=4),
            Measure("least", "least squared gradient norm at the largest T", last("least"), better="lower", digits=7),
        ),
        quick=Quick({"rounds": [2048, 2560], "runs": 2}, tuple(arm.name for arm in _ARMS[:2])),
        claims=tuple(
            bounds.below(arm, "the mean squared gradient norm is below the bound for every T") for arm in _ARMS
        ),
        figure=bounds.drawing("rounds T", "mean squared gradient norm"),
        notes=f"""\
- Logistic regression with examples of norm at most 1, so that assumption 3.1 holds; equation 3's gradient is computed
  exactly. Batches of one example; rho_k is the loss after 100 full gradient steps alone. Every client that is picked
  takes part. Means are over the rounds and over {_RUNS} repetitions.
- Step sizes: eta_l = 1 / (sqrt(T) tau), eta_g = sqrt(tau m), epsilon = m, the proof's (appendix B.3).
- The bound is appendix B.3's before its constants are hidden in an O, put together from the parts (105), (109), (116)
  and (120) by us, and computed with L_s, L_c, sigma_g^2 and kappa^2 of each draw of the data, which hold for every
  model (beta = 1). (120) prints a tau^2 too many, with which (7) would not follow; it is left out.
- The proof takes the step's normaliser, which depends on the clients that are picked, for independent of them.
- A bound that holds says nothing about how near it is: the first column does.
""",
        compute=compute,
    ),
)
