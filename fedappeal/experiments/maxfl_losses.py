"""MaxFL, figure 6: the mean loss on the training data against that on the test data, over the rounds."""

from pathlib import Path

from fedappeal.experiments.experiment import Arm, Claim, Experiment, Lines, Measure, Numbers, Quick, Results, last
from fedappeal.experiments.maxfl_settings import CLUSTERS, DIRICHLET, QUICK, SENT140, STRATEGY

_EVERY = {"evaluate-every": 5, "report-train-loss": True, "participation": "always"}


def _largest_gap(lines: Lines) -> float | None:
    gaps = [abs(line["loss"] - line["train_loss"]) for line in lines if "train_loss" in line]
    return max(gaps, default=None)


def _last_gap(lines: Lines) -> float | None:
    found = [line["loss"] - line["train_loss"] for line in lines if "train_loss" in line]
    return found[-1] if found else None


_TEST = Measure("test-loss", "mean test loss, last round", last("loss"), better="lower", digits=3)
_TRAIN = Measure("train-loss", "mean training loss, last round", last("train_loss"), better="lower", digits=3)
_GAP = Measure("gap", "test less training, last round", _last_gap, better="lower", digits=3)
_LARGEST = Measure("largest-gap", "largest difference over the rounds", _largest_gap, better="lower", digits=3)


def _figure(results: Results, stem: Path) -> None:
    from fedappeal.experiments.plots import COLOURS, curve, new_figure, save

    picture = new_figure(3.8 * len(results.arms), 3.2)
    for axes, arm in zip(picture.subplots(1, len(results.arms), squeeze=False)[0], results.arms, strict=True):
        for key, label, colour, style in (
            ("loss", "test loss, mean of $f_k(w)$", COLOURS[0], "-"),
            ("train_loss", "training loss, mean of $F_k(w)$", COLOURS[1], "--"),
        ):
            rounds, means, spreads = curve(results.of(arm.name), key)
            axes.plot(rounds, means, style, color=colour, label=label, linewidth=1.4)
            axes.fill_between(rounds, means - spreads, means + spreads, color=colour, alpha=0.15, linewidth=0)
        axes.set(title=arm.name, xlabel="round")
        axes.grid(alpha=0.3)
    picture.axes[0].set_ylabel("mean loss over clients")
    picture.axes[0].legend(fontsize=8)
    save(picture, stem)


def _near(arm: str) -> Claim:
    def holds(number: Numbers) -> bool:
        return abs(number(arm, "gap")) <= 0.05 * number(arm, "test-loss")

    return Claim(f"at the end both losses agree within 5 % ({arm})", holds)


_ARMS = (
    Arm("FedAvg, clusters", {**CLUSTERS, **_EVERY, "strategy": STRATEGY["FedAvg"]}),
    Arm("MaxFL, clusters", {**CLUSTERS, **_EVERY, "strategy": STRATEGY["MaxFL"]}),
    Arm("FedAvg, Dirichlet", {**DIRICHLET, **_EVERY, "strategy": STRATEGY["FedAvg"]}),
    Arm("MaxFL, Dirichlet", {**DIRICHLET, **_EVERY, "strategy": STRATEGY["MaxFL"]}),
    Arm("FedAvg, Sent140", {**CLUSTERS, **SENT140.settings, **_EVERY, "strategy": STRATEGY["FedAvg"]}),
    Arm("MaxFL, Sent140", {**CLUSTERS, **SENT140.settings, **_EVERY, "strategy": STRATEGY["MaxFL"]}),
)

EXPERIMENTS = (
    Experiment(
        name="maxfl-figure6",
        title="MaxFL: training loss and test loss",
        source="MaxFL, figure 6",
        claim="The clients' mean training loss of the global model is nearly its mean test loss, all along; so "
        "F_k may stand for f_k in the objective.",
        settings={},
        arms=_ARMS,
        measures=(_TEST, _TRAIN, _GAP, _LARGEST),
        quick=Quick({**QUICK, "unseen-clients": 0}, ("FedAvg, clusters", "MaxFL, clusters")),
        claims=tuple(_near(arm.name) for arm in _ARMS),
        figure=_figure,
        notes="""\
- Nobody opts out here. Labels of 30 % of the clients are flipped in training and test data alike: were the
  training labels alone flipped, the two losses would differ for those clients by construction.
- The clients report their training loss for this experiment only (`report-train-loss`).
""",
    ),
)
