"""Settings of FedALIGN's experiments: section 4's, the arms, the measures, the figures' panels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedappeal.studies.experiment import Arm, Claim, Contrast, ahead
from fedappeal.views.comparison.measures import LATE, Lines, Measure, last, late
from strategies.fedalign.strategy import warmup_rounds

SETTINGS: Mapping[str, Any] = {
    "strategy": "fedalign",
    "rounds": 200,
    "fedalign.warmup-share": 0.1,
    "local-steps": 0,
    "local-epochs": 5,
    "learning-rate": 0.1,
    "batch-size": 32,
    "fedalign.match-on": "error",
    "fedalign.epsilon": 0.2,
    "requirement": "fixed",
    "evaluate-every": 2,
    "evaluate-train": False,
}
"""Section 4: E = 5 local epochs, 200 rounds, 20 of them of warm-up, accuracy as the proxy of the loss."""

PRIORITY_ONLY = "priority only"
ALL = "all"
ALL_LATER = "all, after warm-up"
FEDALIGN = "FedALIGN"
TO_ZERO = "FedALIGN, epsilon to 0"
ON_LOSS = "FedALIGN, on the loss"

HOW: Mapping[str, Mapping[str, Any]] = {
    PRIORITY_ONLY: {"fedalign.epsilon": -2.0, "fedalign.warmup-share": 0.0},
    ALL: {"fedalign.epsilon": 1e9, "fedalign.warmup-share": 0.0},
    FEDALIGN: {},
    TO_ZERO: {"fedalign.epsilon-schedule": "linear"},
    ON_LOSS: {"fedalign.match-on": "loss"},
    ALL_LATER: {"fedalign.epsilon": 1e9},
}
"""The baselines are FedALIGN too: epsilon below 0 takes no non-priority client, a very large one takes all."""


_BASELINES = (ALL, ALL_LATER, PRIORITY_ONLY)


def _warm_up(lines: Lines) -> int:
    return warmup_rounds(float(SETTINGS["fedalign.warmup-share"]), int(lines[-1]["round"]))


def _after_warm_up(lines: Lines) -> float | None:
    return late("priority_accuracy", int(lines[-1]["round"]) - _warm_up(lines))(lines) if lines else None


def _at_its_end(lines: Lines) -> float | None:
    return last("priority_accuracy")(lines[: _warm_up(lines)]) if lines else None


ACCURACY = Measure("accuracy", "priority clients' accuracy %", last("priority_accuracy"), percent=True)
ACCURACY_LATE = Measure(
    "accuracy-late", f"priority clients' accuracy %, last {LATE} rounds", late("priority_accuracy"), percent=True
)
ACCURACY_MEAN = Measure(
    "accuracy-mean",
    "priority clients' accuracy %, mean after warm-up",
    _after_warm_up,
    percent=True,
)
ACCURACY_WARM = Measure("accuracy-warm", "priority clients' accuracy %, end of warm-up", _at_its_end, percent=True)
ACCEPTED = Measure("accepted", f"non-priority clients taken in, last {LATE} rounds", late("accepted"), better="")
ALL_CLIENTS = Measure("all-clients", f"all clients' accuracy %, last {LATE} rounds", late("accuracy"), percent=True)

MEASURES = (ACCURACY, ACCURACY_LATE, ACCURACY_MEAN, ACCURACY_WARM, ALL_CLIENTS, ACCEPTED)


@dataclass(frozen=True)
class Setting:
    """One panel of the figure: the same arms on some data.

    Attributes:
        title: above the panel, and above its rows.
        suffix: what its rows' names end with, as names are unique.
        settings: beside the experiment's.
        arms: which of `HOW`.
    """

    title: str
    suffix: str
    settings: Mapping[str, Any]
    arms: Sequence[str]

    def named(self, arm: str) -> str:
        """Return the name of the row of an arm of `HOW`."""
        return f"{arm}, {self.suffix}" if self.suffix else arm

    def rows(self) -> tuple[Arm, ...]:
        """Return the rows."""
        return tuple(
            Arm(self.named(arm), {**self.settings, **HOW[arm]}, group=self.title, label=arm) for arm in self.arms
        )

    def claims(self) -> tuple[Claim, ...]:
        """Return the paper's claims: FedALIGN ends ahead of the baselines, and faster; taking all in does harm."""
        claims = []
        for arm in self.arms:
            for other in _BASELINES:
                if arm in _BASELINES or other not in self.arms:
                    continue
                claims.append(self._ahead(arm, other, ACCURACY_LATE, "the end"))
                if arm == FEDALIGN:
                    claims.append(self._ahead(arm, other, ACCURACY_MEAN, "mean after warm-up"))
        if ALL_LATER in self.arms:
            name, text = (
                self.named(ALL_LATER),
                f"{ALL_LATER}, is worse on average than at the end of warm-up",
            )
            claims.append(
                Claim(text, Contrast((name, ACCURACY_WARM.key), (name, ACCURACY_MEAN.key)), self.title, "points")
            )
        return tuple(claims)

    def _ahead(self, arm: str, other: str, measure: Measure, when: str) -> Claim:
        margin = ahead(self.named(arm), self.named(other), measure.key)
        ours = measure is ACCURACY_MEAN
        return Claim(f"{arm} over {other}: {when}", margin, self.title, "points", ours=ours)
