"""How docs/attacks.json, and docs/privacy.md, say what an attack found."""

import json

import numpy as np

from fedappeal.protocol import keys
from tests.docs.pages import DOCS
from tests.hostile.attacks.victim import Found, Vector, Victim

MEASURED: list[list[str | int]] = json.loads((DOCS / "attacks.json").read_text())
SILENT = "--no-report-loss --no-report-weight --no-report-appeal --no-answer-evaluate"
NOISY = "--clipping-norm 1 --dp-epsilon 5"
CLIPPED = "--clipping-norm 1"
SHORT = {SILENT: "silent", NOISY: "noise", CLIPPED: "clipping"}
"""What the page calls some switches."""


def check(attack: str, options: str, models: int, figure: str) -> None:
    """Check that what was measured is a line of the committed figures; prints the line."""
    line = [attack, _shown(options), models, figure]
    print(line)
    assert line in MEASURED


def _shown(options: str) -> str:
    own = options.removeprefix(SILENT).strip()
    return ", ".join([*(["silent"] if SILENT in options else []), *([SHORT.get(own, own)] if own else [])]) or "none"


def requirement_figure(found: float, rho: float) -> str:
    """Return how far a requirement that was worked out is from the client's, in words."""
    off = abs(found - rho) / rho
    if off > 0.5:
        return "rho_k more than 50 % off"
    return f"rho_k within {next(bound for bound in (0.01, 1, 50) if 100 * off <= bound)} %"


def labels_figure(found: Vector, truth: list[int], split: str = keys.TRAIN_SPLIT) -> str:
    """Return how far counts of labels are from the client's, in words."""
    off, of = float(np.sqrt(np.mean((found - truth) ** 2))), f"({sum(truth)} {split})"
    if off < 0.01:
        return f"labels exact {of}"
    return f"labels within 4 {of}" if off < 4 else f"labels more than 4 off {of}"


def images_figure(found: Found[Vector], victim: Victim) -> str:
    """Return how many of the client's training images were found, in words."""
    truth = victim.images()
    gaps = np.abs(found.value.reshape(-1, 1, truth.shape[1]) - truth[None]).max(axis=2)
    right = gaps.min(axis=1, initial=np.inf) < 1e-4
    count = len(set(gaps.argmin(axis=1)[right])) if right.any() else 0
    return f"{count} of {len(truth)} images"
