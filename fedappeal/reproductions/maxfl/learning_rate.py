r"""MaxFL, figure 7: the adaptive learning rate over the mean-estimation example, and what it is worth.

With ``gap_k = F_k(w) - rho_k = (w - estimate_k)^2`` and ``q_k = s_k (1 - s_k)``, ``s_k = sigmoid(gap_k)``::

    rate(w) = M / (L_s (sum_k q_k + epsilon)),   L_s = 2                  section 3, "Adaptive Server Learning Rate"
    slope(w) = 1/M sum_k q_k 2 (w - estimate_k)                           equation 4
    curvature(w) = 1/M sum_k q_k (2 + 4 (1 - 2 s_k) gap_k)                its derivative

The constant rate beside it is ``1 / L`` with the largest absolute curvature L of all models that are looked at: the
"global notion of smoothness" of appendix D.2.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.reproductions.maxfl import mean_estimation as mean
from fedappeal.reproductions.maxfl.mean_estimation import Floats, objective, sigmoid_slope
from fedappeal.studies.experiment import Results
from fedappeal.views.comparison.measures import COLOURS, Figure, new_panels

SMOOTHNESS = 2.0
"""L_s: F_k is a parabola."""

AROUND, POINTS = 4.0, 401
"""How far the models that are looked at go beyond the outermost estimates, and their number."""

FLAT = 0.1
"""A region is flat where slope and curvature are at most this share of the largest ones that are looked at."""

BEYOND, NEAR, MOST = 2.5, 1e-3, 20_000
"""How far beyond the largest estimate a descent starts, how near its minimum's height it ends, its most rounds."""


def rate(w: Floats, estimates: Floats) -> Floats:
    """Return MaxFL's adaptive rate, of a step along its objective's gradient; shapes as in `objective`."""
    q = sigmoid_slope((w[..., None] - estimates) ** 2)
    return np.asarray(estimates.shape[-1] / (SMOOTHNESS * (q.sum(axis=-1) + mean.STABILIZER)))


def slope(w: Floats, estimates: Floats) -> Floats:
    """Return the first derivative of MaxFL's objective; shapes as in `objective`."""
    away = w[..., None] - estimates
    return np.asarray((sigmoid_slope(away**2) * 2.0 * away).mean(axis=-1))


def curvature(w: Floats, estimates: Floats) -> Floats:
    """Return the second derivative of MaxFL's objective; shapes as in `objective`."""
    gaps = (w[..., None] - estimates) ** 2
    falling = -np.tanh(gaps / 2)  # 1 - 2 s
    return np.asarray((sigmoid_slope(gaps) * (2.0 + 4.0 * falling * gaps)).mean(axis=-1))


def looked_at(estimates: Floats) -> Floats:
    """Return the models that are looked at, shape ``(draws, POINTS)``, for estimates ``(draws, M)``."""
    low, high = estimates.min(axis=1) - AROUND, estimates.max(axis=1) + AROUND
    return np.asarray(np.linspace(low, high, POINTS, axis=1))


def flat(w: Floats, estimates: Floats) -> NDArray[np.bool_]:
    """Return whether the objective is flat at each model.

    Shapes as in `objective`.
    """
    steep, bent = np.abs(slope(w, estimates)), np.abs(curvature(w, estimates))
    limits = [FLAT * values.max(axis=-1, keepdims=True) for values in (steep, bent)]
    return np.asarray((steep <= limits[0]) & (bent <= limits[1]))


def rounds_needed(estimates: Floats, constant: bool) -> Floats:
    """Return each draw's rounds of gradient descent to its largest estimate's minimum.

    From beyond that estimate.

    Args:
        estimates: shape ``(draws, M)``.
        constant: with the constant rate; otherwise with the adaptive one.

    Returns:
        At most `MOST`, shape ``(draws,)``.
    """
    largest = np.argmax(estimates, axis=1)
    rows = np.arange(len(estimates))
    target = objective(mean.minimise(estimates, largest).models(estimates), estimates) + NEAR
    grid = looked_at(estimates)
    fixed = 1.0 / np.abs(curvature(grid, estimates[:, None, :])).max(axis=1)
    w, rounds, active = estimates[rows, largest] + BEYOND, np.zeros(len(estimates)), rows
    for _ in range(MOST):
        active = active[objective(w[active], estimates[active]) > target[active]]
        if not active.size:
            break
        here, theirs = w[active], estimates[active]
        w[active] = here - (fixed[active] if constant else rate(here, theirs)) * slope(here, theirs)
        rounds[active] += 1
    return rounds


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return the value of one row's rate over many draws of two clients' estimates."""
    means = (-settings["half"], settings["half"])
    estimates = mean.draw_estimates(means, settings["gamma"], settings["draws"], seed)
    w, theirs = looked_at(estimates), estimates[:, None, :]
    rates, is_flat = rate(w, theirs), flat(w, theirs)
    in_flat, elsewhere = (_mean(rates, where) for where in (is_flat, ~is_flat))
    return {
        "flat": float(is_flat.mean()),
        "rate_flat": float(in_flat.mean()),
        "rate_elsewhere": float(elsewhere.mean()),
        "higher": float((in_flat > elsewhere).mean()),
        "rounds_adaptive": float(np.median(rounds_needed(estimates, constant=False))),
        "rounds_constant": float(np.median(rounds_needed(estimates, constant=True))),
    }


def _mean(values: Floats, where: NDArray[np.bool_]) -> Floats:
    """Return each row's geometric mean over the places that are meant; every row has one."""
    return np.asarray(np.exp((np.log(values) * where).sum(axis=1) / where.sum(axis=1)))


def figure(results: Results) -> Figure:
    """Draw objective and rate of two clients whose estimates are a row's means."""
    picture, panels = new_panels(10.5, 5.4, 2, len(results.arms), sharex="col", sharey="row")
    for (above, below), letter, arm in zip(panels.T, "ab", results.arms, strict=False):
        half = float(arm.settings["half"])
        estimates = np.array([[-half, half]])
        (w,) = looked_at(estimates)
        above.plot(w, objective(w, estimates), color="black", label="objective (equation 3)")
        below.plot(w, rate(w, estimates), color=COLOURS[1], label="MaxFL's adaptive rate")
        steepest = 1.0 / np.abs(curvature(w, estimates)).max()
        below.axhline(steepest, color=COLOURS[0], linestyle="--", label="constant rate, 1 / largest curvature")
        for axes in (above, below):
            axes.fill_between(
                w, 0, 1, where=flat(w, estimates), transform=axes.get_xaxis_transform(), color="#dddddd", label="flat"
            )
            axes.plot(estimates[0], [0, 0], "^", color="black", transform=axes.get_xaxis_transform(), clip_on=False)
        above.set_title(f"({letter}) estimates {-half:g} and {half:g}")
        below.set(yscale="log", xlabel="model $w$")
    panels[0][0].set_ylabel("objective")
    panels[1][0].set_ylabel("learning rate")
    panels[0][0].legend(fontsize=8)
    panels[1][0].legend(fontsize=8, loc="upper center")
    return picture
