"""How a server works out rho_k: from a weight, from a bit and losses, from decisions and gradients."""

import math
from collections.abc import Callable

import numpy as np
from flwr.app import RecordDict

from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from strategies.maxfl_adagd import MARGIN
from tests.hostile.attacks.labels import by_bias_gradient
from tests.hostile.attacks.victim import CLASSES, Found, Vector, Victim
from tests.node import metrics_of

FAR = 2.5
"""Along the line from zeros to a fitted model: here no loss is left."""


def gap_of(weight: float) -> float:
    """Return ``|F_k - rho_k|`` of a weight ``q_k = s (1 - s)``."""
    root = math.sqrt(max(0.0, 1 - 4 * weight))
    return math.log((1 - 2 * weight + root) / (2 * weight))


def by_weight(victim: Victim) -> Found[float]:
    """Send a model of zeros, whose loss is ``ln C`` on any data; what a client requires is below that."""
    weight = _claim(victim.train(victim.zero()), APPEAL_WEIGHT)
    return Found(math.log(CLASSES) - gap_of(weight), victim.asked)


def by_margin(victim: Victim, threshold: float) -> Found[float]:
    """Do the same to MaxFL-ADA-GD, whose clients send ``4 q_k (F_k - threshold)``."""
    margin = _claim(victim.train(victim.zero()), MARGIN)
    weight = margin / (math.log(CLASSES) - threshold) / 4
    return Found(math.log(CLASSES) - gap_of(weight), victim.asked)


def by_rounded_weight(victim: Victim, digits: int, trains: int) -> list[Found[float]]:
    """Work against a client that rounds its weight: choose each loss so that the answer halves what is possible.

    Models that are biases alone have a loss that the server knows from the histogram of labels, which is in the
    gradient of one. Returns what is known after each weight.
    """
    counts = by_bias_gradient(victim).value
    half, low, high, loss = 0.5 / 10**digits, 0.0, math.log(CLASSES), math.log(CLASSES)
    found: list[Found[float]] = []
    for _ in range(trains):
        if found:  # the first loss for which the weight of the middle lies where rounding changes
            middle = (low + high) / 2
            edge = math.floor((appeal_weight(math.log(CLASSES), middle) - half) * 10**digits) / 10**digits + half
            loss = middle + gap_of(edge)
        told = round(_claim(victim.train(_with_loss(victim, loss, counts)), APPEAL_WEIGHT), digits)
        low, high = max(low, loss - gap_of(max(told - half, 1e-300))), min(high, loss - gap_of(told + half))
        found.append(Found((low + high) / 2, victim.asked))
    return found


def by_appeal(victim: Victim, split: str, steps: int) -> Found[float]:
    """Send models between zeros and a fitted one: each EVALUATE tells its loss, and whether it is below rho_k."""
    fitted, bit = _fitted(victim), keys.APPEALED_TRAIN if split == keys.TRAIN_SPLIT else keys.APPEALED
    low, high = 0.0, math.log(CLASSES)

    def meets(at: float) -> bool:
        nonlocal low, high
        told = victim.evaluate(_scaled(fitted, at), split)
        if told[bit]:
            low = told[keys.LOSS]
        else:
            high = told[keys.LOSS]
        return bool(told[bit])

    _first(meets, steps)
    return Found((low + high) / 2, victim.asked)


def by_decisions(victim: Victim, steps: int, nodes: int) -> Found[float]:
    """Use no number that a client reports: its decisions, and the gradients that it trains by.

    A model between zeros and a fitted one is joined from the point on where its loss is below rho_k. The loss there
    is the integral of its slope from there to where none is left, and a client that joins sends the slope.
    """
    fitted = _fitted(victim)
    start = _first(lambda at: joined(victim.train(_scaled(fitted, at), mandatory=False)), steps)
    if start == FAR:
        return Found(0.0, victim.asked)
    points, weights = np.polynomial.legendre.leggauss(nodes)
    half, loss = (FAR - start) / 2, 0.0
    for point, weight in zip(start + half * (points + 1), weights, strict=True):
        slope = victim.gradient(_scaled(fitted, float(point)))
        loss -= half * weight * sum(float(np.sum(slope[name] * fitted[name])) for name in fitted)
    return Found(loss, victim.asked)


def joined(reply: RecordDict) -> bool:
    """Whether a client joined."""
    return metrics_of(reply)[keys.DECISION] == 1


def _claim(reply: RecordDict, key: str) -> float:
    return float(metrics_of(reply)[key])  # type: ignore[arg-type]


def _fitted(victim: Victim) -> Arrays:
    """Return the model that the client trains from zeros, by 200 steps over all of its examples."""
    sent = victim.zero()
    asked = {"batch-size": 10**6, "local-steps": 200, "learning-rate": 0.5}
    return {name: -array for name, array in victim.update(sent, victim.train(sent, **asked)).items()}


def _scaled(model: Arrays, by: float) -> Arrays:
    return {name: (by * array).astype(np.float32) for name, array in model.items()}


def _with_loss(victim: Victim, loss: float, counts: Vector) -> Arrays:
    """Return a model of biases alone with a loss of at least ``ln C`` on examples with these labels."""
    label, shares = int(np.argmax(counts)), counts / counts.sum()

    def loss_at(bias: float) -> float:
        return math.log(CLASSES - 1 + math.exp(-bias)) + float(shares[label]) * bias

    bias = _first(lambda at: loss_at(at) >= loss, 60, 100.0)
    return victim.biased(-bias * np.eye(CLASSES)[label])


def _first(holds: Callable[[float], bool], steps: int, most: float = FAR) -> float:
    """Return about the first number up to ``most`` from which on something holds, by bisection."""
    low, high = 0.0, most
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
