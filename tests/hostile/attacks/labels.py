"""How a server counts a volunteer's labels: by metrics, by losses, by a gradient."""

import numpy as np

from fedappeal.protocol import keys
from tests.hostile.attacks.victim import CLASSES, EXAMPLES, Found, Vector, Victim

SURE = 50.0
"""A bias beside which the other labels have no share."""


def by_accuracy(victim: Victim, split: str) -> Found[Vector]:
    """Ask how often each label is right, with models that always name one; the last follows from the others."""
    counts: list[float] = []
    for label in range(CLASSES - 1):
        told = victim.evaluate(victim.biased(SURE * np.eye(CLASSES)[label]), split)
        counts.append(told["accuracy"] * told[keys.NUM_EXAMPLES])
    return Found(np.array([*counts, told[keys.NUM_EXAMPLES] - sum(counts)]), victim.asked)


def by_loss(victim: Victim, split: str, at_once: int) -> Found[Vector]:
    """Read several counts off one loss: its biases are powers of a number larger than any count."""
    counts, base = np.zeros(CLASSES), EXAMPLES + 1
    for first in range(0, CLASSES - 1, at_once):
        labels = range(first, min(first + at_once, CLASSES - 1))
        bias = np.zeros(CLASSES)
        bias[labels.start : labels.stop] = [-SURE * base**place for place in range(len(labels))]
        told = victim.evaluate(victim.biased(bias), split)
        # Of each example the logarithm of how many labels have no bias, and its own label's bias.
        total = round((told[keys.LOSS] - np.log(CLASSES - len(labels))) * told[keys.NUM_EXAMPLES] / SURE)
        for label in labels:
            total, counts[label] = divmod(total, base)
    counts[-1] = told[keys.NUM_EXAMPLES] - counts.sum()
    return Found(counts, victim.asked)


def by_bias_gradient(victim: Victim, answers: int = 1) -> Found[Vector]:
    """Read the counts off an update: at zeros the gradient of a label's bias is ``1/C`` minus the label's share.

    Each further answer is to another step size, so that noise which follows the update is another one, and their mean
    has less. The steps are short enough that clipping to 1 leaves the update as it is, where no other gradient is.
    """
    slopes = [victim.gradient(victim.zero(), rate=3.0 + n / 1000)["output.bias"] for n in range(answers)]
    return Found((1 / CLASSES - np.mean(slopes, axis=0)) * victim.examples, victim.asked)
