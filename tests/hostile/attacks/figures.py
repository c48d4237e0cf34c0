"""How docs/privacy.md says what an attack found: as lines of its tables."""

import numpy as np

from fedappeal.protocol import keys
from tests.docs.pages import DOCS
from tests.hostile.attacks.victim import Found, Vector, Victim

PAGE = (DOCS / "privacy.md").read_text()
SILENT = "--no-report-loss --no-report-weight --no-report-appeal --no-answer-evaluate"
"""The page says `silent` for it."""
NOISY = "--clipping-norm 1 --dp-epsilon 5"


def check(attack: str, options: str, models: int, figure: str) -> None:
    """Check that a line of the page's tables says what was measured; prints the line."""
    own = options.removeprefix(SILENT).strip()
    shown = [*(["silent"] if SILENT in options else []), *([f"`{own}`"] if own else [])]
    line = f"| {attack} | {', '.join(shown) or 'none'} | {models} | {figure} |"
    print(line)
    assert line in PAGE.splitlines()


def requirement_figure(found: float, rho: float) -> str:
    """Return how far a requirement that was worked out is from the client's, in words."""
    off = abs(found - rho) / rho
    if off > 0.5:
        return "nothing: more than 50 % off"
    return f"rho_k, less than {next(bound for bound in (0.01, 1, 50) if 100 * off <= bound)} % off"


def labels_figure(found: Vector, truth: list[int], split: str = keys.TRAIN_SPLIT) -> str:
    """Return how far counts of labels are from the client's, in words."""
    off, of = float(np.sqrt(np.mean((found - truth) ** 2))), f"of {sum(truth)} {split} examples"
    if off < 0.01:
        return f"every count, exactly, {of}"
    return f"counts less than 4 off, {of}" if off < 4 else f"nothing: counts more than 4 off, {of}"


def images_figure(found: Found[Vector], victim: Victim) -> str:
    """Return how many of the client's training images were found, in words."""
    truth = victim.images()
    gaps = np.abs(found.value.reshape(-1, 1, truth.shape[1]) - truth[None]).max(axis=2)
    right = gaps.min(axis=1, initial=np.inf) < 1e-4
    count = len(set(gaps.argmin(axis=1)[right])) if right.any() else 0
    return f"{count} of {len(truth)} images" + (", each pixel less than 0.0001 off" if count else "")
