"""MaxFL, figure 6: the mean loss on the training data against that on the test data, over the rounds."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedappeal.reproductions.maxfl.settings import CLUSTERS, DIRICHLET, QUICK, SENT140, STRATEGY, correlation
from fedappeal.studies.experiment import Arm, Claim, Experiment, Quick, Results, at_least, at_most
from fedappeal.studies.pictures import curve
from fedappeal.views.comparison.measures import COLOURS, Figure, Lines, Measure, last, new_panels, unmeasured

_EVERY = {"evaluate-every": 5, "report-train-loss": True, "participation": "always"}


_NEARLY = 0.05
"""How far apart the two losses may be, as a share of the loss of guessing: what a model loses has no such bound."""

_TOGETHER = 0.99
"""Correlation over the rounds from which on the losses are said to move together."""


def _pairs(lines: Lines) -> NDArray[np.float64]:
    """Return test and training loss of each evaluated round, shape ``(n, 2)``; n = 0 where the model diverged."""
    if any(unmeasured(line) for line in lines):
        return np.empty((0, 2))
    return np.array([(line["loss"], line["train_loss"]) for line in lines if "train_loss" in line]).reshape(-1, 2)


def _read(reading: Callable[[NDArray[np.float64]], float]) -> Callable[[Lines], float | None]:
    """Return a reading of the pairs; None where there are none."""
    return lambda lines: float(reading(pairs)) if (pairs := _pairs(lines)).size else None


def _correlation(lines: Lines) -> float | None:
    return None if any(map(unmeasured, lines)) else correlation("loss", "train_loss")(lines)


_loss = partial(Measure, better="lower", digits=3)
_TEST = _loss("test-loss", "mean test loss, last round", last("loss"))
_TRAIN = _loss("train-loss", "mean training loss, last round", last("train_loss"))
_FIRST = _loss("first-loss", "mean test loss, first evaluation", _read(lambda pairs: pairs[0, 0]))
_GAP = _loss("gap", "test less training, last round", _read(lambda pairs: pairs[-1, 0] - pairs[-1, 1]))
_LARGEST = _loss(
    "largest-gap", "largest difference over the rounds", _read(lambda pairs: np.abs(pairs[:, 0] - pairs[:, 1]).max())
)
_CORRELATION = Measure("correlation", "correlation over the rounds", _correlation, digits=4)


def _figure(results: Results) -> Figure:
    wide = len(results.arms)
    picture, panels = new_panels(3.8 * wide, 5.4, 2, wide, height_ratios=(3, 2), sharex="col")
    for above, below, arm in zip(*panels, results.arms, strict=True):
        for key, label, colour, style in (
            ("loss", "test loss, mean of $f_k(w)$", COLOURS[0], "-"),
            ("train_loss", "training loss, mean of $F_k(w)$", COLOURS[1], "--"),
        ):
            above.plot(*curve(results.of(arm.name), key), style, color=colour, label=label, linewidth=1.4)
        above.set(title=arm.name)
        for run in results.of(arm.name):
            gaps = curve([run], lambda line: line["loss"] - line["train_loss"] if "train_loss" in line else None)
            below.plot(*gaps, color=COLOURS[2], linewidth=0.9, alpha=0.8)
        for side in (-1, 1):
            below.axhline(side * _allowed(arm.name), color="#666666", linestyle=":", linewidth=1.2)
        below.set(xlabel="round")
    panels[0, 0].set_ylabel("mean loss over clients")
    panels[0, 0].legend(fontsize=8)
    panels[1, 0].set_ylabel("test less training,\na line a seed")
    return picture


def _labels(arm: str) -> int:
    return 2 if arm.endswith("Sent140") else 10


def _allowed(arm: str) -> float:
    return _NEARLY * math.log(_labels(arm))


def _near(arm: str) -> Claim:
    bound = f"{_allowed(arm):.3f}, {_NEARLY:.0%}".replace("%", " %")
    text = f"{arm}: both losses agree in every evaluated round (within {bound} of the loss of guessing"
    text = f"{text} among {_labels(arm)} labels)"
    return Claim(text, at_most(arm, _LARGEST.key, _allowed(arm)), inclusive=True, ours=True)


def _together(arm: str) -> Claim:
    text = f"{arm}: both losses move together over the rounds (correlation at least {_TOGETHER})"
    return Claim(text, at_least(arm, _CORRELATION.key, _TOGETHER), inclusive=True, ours=True)


_DATA = {"clusters": CLUSTERS, "Dirichlet": DIRICHLET, "Sent140": {**CLUSTERS, **SENT140.settings}}
_ARMS = tuple(
    Arm(f"{name}, {data}", {**settings, **_EVERY, "strategy": STRATEGY[name]})
    for data, settings in _DATA.items()
    for name in ("FedAvg", "MaxFL")
)

EXPERIMENTS = (
    Experiment(
        name="maxfl-figure6",
        title="MaxFL: training loss and test loss",
        source="MaxFL, figure 6",
        claim="The clients' mean training loss of the global model is nearly its mean test loss, all along; so "
        "F_k may stand for f_k in the objective.",
        arms=_ARMS,
        measures=(_FIRST, _TEST, _TRAIN, _GAP, _LARGEST, _CORRELATION),
        quick=Quick({**QUICK, "unseen-clients": 0}, ("FedAvg, clusters", "MaxFL, clusters")),
        claims=tuple(claim(arm.name) for claim in (_near, _together) for arm in _ARMS),
        figure=_figure,
        notes="""\
- No client opts out. Labels are flipped in training and test data alike: were the training labels alone flipped,
  the losses would differ by construction.
- "Nearly identical" is checked in every evaluated round against a fixed bound, the dotted lines.
- MaxFL's mean loss rises: clients far from their requirement hardly count in its objective.
- By appendix D.1 the paper's figure is of Dirichlet draws.
""",
    ),
)
