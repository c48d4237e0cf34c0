"""How a server reads images off updates: of a batch of one, of two batches that differ by one, of rare units.

A unit of the first layer that is active for one image of a batch has that image's gradient alone: the gradient of its
weights over that of its bias is the image. Which units had one image the result shows: its pixels are whole greys.
"""

from collections.abc import Sequence

import numpy as np

from fedappeal.protocol.packing import Arrays
from fedappeal.tasks.datasets.digits import Digits
from tests.hostile.attacks.victim import PIXELS, Found, Vector, Victim, other_images


def by_single_batches(victim: Victim, models: int, batch_size: int = 1) -> Found[Vector]:
    """Ask for batches of one: the gradient of a layer's weights over that of its bias is the image."""
    found = [_image(victim.gradient(victim.zero(), batch_size)) for _ in range(models)]
    return Found(np.array(found), victim.asked)


def by_differences(victim: Victim, models: int) -> Found[Vector]:
    """Ask for all examples, then for all but one: the difference of the sums is that one's gradient."""
    all_of_them, n = victim.gradient(victim.zero()), victim.examples
    found = []
    for _ in range(models):
        but_one = victim.gradient(victim.zero(), n - 1)
        found.append(_image({name: n * all_of_them[name] - (n - 1) * but_one[name] for name in but_one}))
    return Found(np.array(found), victim.asked)


def by_rare_units(victim: Victim, models: int, batch_size: int = 10**6) -> Found[Vector]:
    """Send first layers each of whose units is active for about one image in all: its gradient is that image's.

    How rarely a unit is active the server tries with images of its own.
    """
    rng, slopes = np.random.default_rng(0), []
    for _ in range(models):
        sent = dict(victim.node.initial)
        directions = rng.normal(size=sent["hidden1.weight"].shape)
        rare = np.quantile(other_images() @ directions.T, 1 - 1 / min(batch_size, victim.examples), axis=0)
        sent |= {"hidden1.weight": directions.astype(np.float32), "hidden1.bias": -rare.astype(np.float32)}
        slopes.append(victim.gradient(sent, batch_size, rate=1e4))
    return Found(_whole_greys(slopes), victim.asked)


def by_initial_model(victim: Victim, models: int, batch_size: int, local_steps: int = 1) -> Found[Vector]:
    """Send w_0 as it is, at the run's own learning rate: some units are active for one image of a batch anyway.

    Each message has a round number of its own, and so another batch and other units that dropout leaves out.
    """
    sent, rate = victim.node.initial, victim.node.config.learning_rate
    asked = {"batch-size": batch_size, "local-steps": local_steps, "learning-rate": rate}
    slopes = [victim.update(sent, victim.train(sent, **asked), rate) for _ in range(models)]
    return Found(_whole_greys(slopes), victim.asked)


def _whole_greys(slopes: Sequence[Arrays]) -> Vector:
    """Return what the first layer's units saw, where its pixels are whole greys: shape ``(images, 64)``."""
    ratios = []
    for slope in slopes:
        weights, biases = slope["hidden1.weight"], slope["hidden1.bias"]
        ratios += [weights[unit] / biases[unit] for unit in np.flatnonzero(biases)]
    greys = (np.array(ratios).reshape(-1, PIXELS) * Digits.std + Digits.mean) * Digits.scale
    whole = np.round(greys)
    images: Vector = (whole / Digits.scale - Digits.mean) / Digits.std
    return images[np.abs(greys - whole).max(axis=1) < 0.05]


def _image(slope: Arrays) -> Vector:
    label = int(np.argmax(np.abs(slope["output.bias"])))
    image: Vector = slope["output.weight"][label] / slope["output.bias"][label]
    return image
