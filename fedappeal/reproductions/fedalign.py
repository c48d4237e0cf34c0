"""FedALIGN: figure 1, image data in shards of one label, and figure 2, SYNTH(1,1) with noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedappeal.studies.experiment import Arm, Claim, Contrast, Experiment, Quick, ahead
from fedappeal.studies.pictures import curves, forest
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


_accuracy = partial(Measure, percent=True)
_PRIORITY = "priority clients' accuracy %"
ACCURACY = _accuracy("accuracy", _PRIORITY, last("priority_accuracy"))
ACCURACY_LATE = _accuracy("accuracy-late", f"{_PRIORITY}, last {LATE} rounds", late("priority_accuracy"))
ACCURACY_MEAN = _accuracy("accuracy-mean", f"{_PRIORITY}, mean after warm-up", _after_warm_up)
ACCURACY_WARM = _accuracy("accuracy-warm", f"{_PRIORITY}, end of warm-up", _at_its_end)
ACCEPTED = Measure("accepted", f"non-priority clients taken in, last {LATE} rounds", late("accepted"), better="")
ALL_CLIENTS = _accuracy("all-clients", f"all clients' accuracy %, last {LATE} rounds", late("accuracy"))

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
            name = self.named(ALL_LATER)
            margin = Contrast((name, ACCURACY_WARM.key), (name, ACCURACY_MEAN.key))
            text = f"{ALL_LATER}, is worse on average than at the end of warm-up"
            claims.append(Claim(text, margin, self.title, "points"))
        return tuple(claims)

    def _ahead(self, arm: str, other: str, measure: Measure, when: str) -> Claim:
        margin = ahead(self.named(arm), self.named(other), measure.key)
        ours = measure is ACCURACY_MEAN
        return Claim(f"{arm} over {other}: {when}", margin, self.title, "points", ours=ours)


_FEWEST = (PRIORITY_ONLY, ALL, FEDALIGN)
_FEW = (PRIORITY_ONLY, ALL, ALL_LATER, FEDALIGN)
_ALL_ARMS = (*_FEW, TO_ZERO, ON_LOSS)
_SHARDS = {"clients": 60, "fedalign.priority-clients": 2, "partition": "shards", "shards-per-client": 2}
_MLP = {"model": "mlp"}
_CNN = {"model": "cnn", "learning-rate": 0.01}
_SCARCE = {"max-train-examples": 100}

_FMNIST = Setting("Fashion-MNIST, logistic regression", "", {}, _ALL_ARMS)
_IN_SHARDS = (
    _FMNIST,
    Setting("Fashion-MNIST, 100 training examples a client", "100 examples", _SCARCE, _ALL_ARMS),
    Setting("EMNIST balanced, two layers", "EMNIST", {**_MLP, "task": "emnist-balanced"}, _FEW),
    Setting("Fashion-MNIST in EMNIST's place, two layers", "two layers", _MLP, _FEW),
    Setting("CIFAR-10, CNN", "CIFAR-10", {**_CNN, "task": "cifar10"}, _FEW),
    Setting(
        "Fashion-MNIST in CIFAR-10's place, CNN, 50 training examples a client, 100 rounds",
        "CNN",
        {**_CNN, "max-train-examples": 50, "rounds": 100, "evaluate-every": 10},
        _FEWEST,
    ),
)

_ARMS = (PRIORITY_ONLY, ALL, ALL_LATER, FEDALIGN, ON_LOSS)

_NOISE: Mapping[str, Mapping[str, Any]] = {
    "medium": {"synth.noise": 0.25, "fedalign.epsilon": 0.2},
    "low": {"synth.noise": 0.1, "fedalign.epsilon": 0.2},
    "high": {"synth.noise": 0.4, "fedalign.epsilon": 0.4},
}
"""In the figure's order. Section 4 gives epsilon; the noise is ours."""

_FORMS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("", "", {}),
    (", 100 examples a client", ", 100 each", {"synth.examples": 100}),
    (", labels y + 1", ", shifted", {"synth.noise-form": "shifted"}),
)
_SYNTHETIC = tuple(
    Setting(f"{noise} noise{title}", noise + suffix, {**values, **form}, _ARMS)
    for title, suffix, form in _FORMS
    for noise, values in _NOISE.items()
)

EXPERIMENTS = (
    Experiment(
        name="fedalign-figure1",
        title="FedALIGN: benchmark data in shards, 2 priority clients of 60",
        source="FedALIGN, figure 1",
        claim="After the warm-up FedALIGN converges faster than FedAvg over the priority clients, and it ends with a "
        "higher accuracy; FedAvg over all clients is far worse.",
        settings={**SETTINGS, **_SHARDS, "task": "fmnist", "model": "logistic"},
        arms=tuple(row for panel in _IN_SHARDS for row in panel.rows()),
        measures=MEASURES,
        quick=Quick(
            {"rounds": 12, "clients": 12, "max-train-examples": 50, "local-epochs": 2},
            tuple(_FMNIST.named(arm) for arm in _FEWEST),
        ),
        claims=tuple(claim for panel in _IN_SHARDS for claim in panel.claims()),
        figure=curves((("priority_accuracy", "test accuracy %", True),), tuple(HOW)),
        glances={"-gaps": forest},
        notes="""\
- The paper prints curves alone. Accuracy is on the two priority clients' test data.
- Two shards of one label a client, 700 rows to train on. The models' shapes are ours.
- `FedALIGN` compares 1 - accuracy with epsilon, 0.2; `on the loss` losses (Algorithm 1); `epsilon to 0` lowers it.
  `all, after warm-up` reads the caption literally.
""",
    ),
    Experiment(
        name="fedalign-figure2",
        title="FedALIGN: SYNTH(1,1) with low, medium and high noise",
        source="FedALIGN, figure 2",
        claim="At every level of noise FedALIGN outperforms FedAvg over the priority clients and FedAvg over all.",
        settings={
            **SETTINGS,
            "task": "synth",
            "model": "logistic",
            "clients": 20,
            "fedalign.priority-clients": 10,
            "synth.alpha": 1.0,
            "synth.beta": 1.0,
            "synth.noisy": 10,
            "synth.examples": 0,
        },
        arms=tuple(row for panel in _SYNTHETIC for row in panel.rows()),
        measures=MEASURES,
        quick=Quick(
            {"rounds": 30, "synth.examples": 50},
            tuple(_SYNTHETIC[2].named(arm) for arm in (PRIORITY_ONLY, ALL, FEDALIGN)),
        ),
        claims=tuple(claim for panel in _SYNTHETIC for claim in panel.claims()),
        figure=curves(
            (("priority_train_loss", "training loss", False), ("priority_accuracy", "test accuracy %", True)),
            tuple(HOW),
        ),
        glances={"-gaps": forest},
        notes="""\
- The paper prints curves alone, and its supplement, which is not at hand, says how the noise is made. Ours
  (docs/tasks.md): a share nu of a non-priority client's labels is wrong, and nu times as many irrelevant examples
  come on top; nu rises from client to client, with mean 0.1 (low), 0.25 (medium) or 0.4 (high). A wrong label is
  any other, or, in the groups "labels y + 1", the next one.
- `FedALIGN` compares `1 - accuracy`, `on the loss` the losses (Algorithm 1), with the paper's epsilon.
- `all` takes all clients in from the first round on, `all, after warm-up` when FedALIGN may.
- Clients hold as many examples as in FedProx's data, or 100 each.
""",
    ),
)
