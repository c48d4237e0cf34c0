"""ADA-GD, figure 2: what defections cost under FedAvg, round by round."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fedappeal.reproductions.adagd import settings as agents
from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick
from fedappeal.studies.pictures import curves, recorded
from fedappeal.views.comparison.measures import Lines, Measure

CLASSES = "0,1,2,3,4,5,6,7,8,9"
AGENTS = 10
"""M: as many agents are sampled for training as there are in the rest of the population."""

SETTINGS: Mapping[str, Any] = {
    **agents.kept_share(CLASSES, 0.9, 1000),
    "train-share": 0.6,
    "clients": AGENTS,
    "unseen-clients": AGENTS,
    "strategy": "fedavg",
    "model": "logistic",
    "participation": "defect",
    "batch-size": 32,
    "evaluate-train": False,
    "evaluate-every": 5,
}

LATER = 5
"""Rounds after a defection at which accuracy is compared with that of the model on which the agent left."""

ETA = 0.1


def local(steps: int, eta: float = ETA) -> dict[str, Any]:
    """Return K local steps of eta / K (Algorithm 3, line 9)."""
    return {"local-steps": steps, "learning-rate": eta / steps}


def _gone_at_peak(lines: Lines) -> float | None:
    """Return how many have left by the round of the highest accuracy."""
    if not (values := recorded(lines, "accuracy")):
        return None
    peak = max(values, key=values.__getitem__)
    return float(sum(left <= peak for left in agents.defections(lines)))


def _worse_after(lines: Lines) -> float | None:
    """Return the share of the rounds with a defection after which accuracy is lower `LATER` rounds on.

    Compared are the model on which the agent left, that of the round before, and the one `LATER` rounds after it, or
    the run's last. A round after which no agent is left to train says nothing: the model stays. None where no
    defection can be judged; accuracies must have been recorded in every round.
    """
    accuracy, end = recorded(lines, "accuracy"), int(lines[-1]["round"])
    judged = [int(line["round"]) - 1 for line in lines if line["left"] and line["joined"]]
    pairs = [(accuracy.get(at), accuracy.get(min(at + LATER, end))) for at in judged]
    fell = [after < before for before, after in pairs if before is not None and after is not None]
    return sum(fell) / len(fell) if fell else None


_share = partial(Measure, percent=True)
BEFORE = _share("before", "accuracy % before the first leaves", agents.before_any_left("accuracy"))
_WORSE = f"defections after which it is lower {LATER} rounds on, %"
WORSE_AFTER = _share("worse-after", _WORSE, _worse_after, better="lower")
GONE_AT_PEAK = Measure("gone-at-peak", "agents gone when it is highest", _gone_at_peak, better="", digits=1)
_POPULATION = "population: accuracy %"
_POPULATION_BEFORE = _share(
    "population-before", f"{_POPULATION} before the first leaves", agents.before_any_left(agents.population)
)
_POPULATION_PEAK = _share("population-peak", f"{_POPULATION} at its highest", agents.over_population(max))

_CIFAR10 = agents.kept_share(CLASSES, 0.9, 1000, "cifar10")
_GROUPS: Mapping[str, tuple[str, Mapping[str, float], Mapping[str, Any]]] = {
    "epsilon = 0.4": ("", {}, {"defect.leave-below": 0.4}),
    "epsilon = 0.2, as in the paper": (", epsilon 0.2", {}, {"defect.leave-below": 0.2}),
    "epsilon = 0.4, MaxFL's network of two hidden layers": (
        *(", network", {}, {"defect.leave-below": 0.4, "model": "mlp"}),
    ),
    "CIFAR-10, the same network, epsilon = 0.2 as in the paper": (
        ", CIFAR-10",
        {"accuracy": 22, "before": 46},
        {"defect.leave-below": 0.2, "model": "mlp", **_CIFAR10},
    ),
}
"""Group of rows -> how the names of its rows end, the paper's numbers, and its settings."""

_LEAVE, _STAY = "rational agents", "no agent leaves"


def _arms() -> tuple[Arm, ...]:
    arms = []
    for group, (suffix, paper, settings) in _GROUPS.items():
        every_round = {"evaluate-every": 1, **settings}  # to see each defection
        always = {key: value for key, value in settings.items() if key != "defect.leave-below"}
        arms.append(Arm(_LEAVE + suffix, every_round, paper, group, label=_LEAVE))
        arms.append(Arm(_STAY + suffix, {**always, "participation": "always"}, {}, group, label=_STAY))
    return tuple(arms)


def _claims_of(arm: str, group: str) -> list[Claim]:
    def falls(key: str, reference: str, text: str) -> Claim:
        def margin(number: Numbers) -> float:
            return round(number(arm, reference) - number(arm, key), 6) - agents.CONSIDERABLE

        whose = "average" if key == "accuracy" else key
        text = f"the {whose} accuracy ends at least {agents.CONSIDERABLE} points below {text}"
        return Claim(text, margin, group, "points", inclusive=True, ours=True)

    worse = f"each defection makes the average accuracy worse: it is lower {LATER} rounds on"
    highest = "the average accuracy is highest before any agent leaves"
    return [
        Claim(worse, lambda number: number(arm, "worse-after") - 100, group, "points", inclusive=True),
        Claim(highest, lambda number: -number(arm, "gone-at-peak"), group, "agents", inclusive=True),
        falls("accuracy", "before", "that before any agent left"),
        falls("accuracy", "peak", "its highest"),
        falls("population", "population-before", "that before any agent left"),
        falls("population", "population-peak", "its highest"),
    ]


NOTES = """\
- The paper uses CIFAR-10 and says neither how many agents there are, nor their data, nor the model. Here:
  Fashion-MNIST, 20 agents of which 10 train, each with 1,000 images of one class of its own, of which it keeps the
  share q and mixes the rest (the paper's formula is printed the wrong way round). Softmax regression from zero.
- Average: the mean accuracy of the 10 sampled agents. Population: of all 20. Agents that left count in both.
- Local SGD takes K steps of eta / K a round (Algorithm 3).
"""
"""Notes of figures 2, 3 and 8 to 11."""


EXPERIMENTS = (
    Experiment(
        name="adagd-figure2",
        title="Defections under FedAvg, round by round",
        source="ADA-GD, figure 2 (Fashion-MNIST beside CIFAR-10)",
        claim="Each defection adversely affects the model: the average accuracy falls from about 46 % before any "
        "defection to around 22 % after 500 iterations, and the population's likewise (CIFAR-10, q = 0.9, K = 5).",
        settings={**SETTINGS, **local(5), "rounds": 500},
        arms=_arms(),
        measures=(
            BEFORE,
            agents.END_ACCURACY,
            agents.AGENTS_LOST,
            agents.FIRST_DEFECTION,
            WORSE_AFTER,
            agents.PEAK_ACCURACY,
            GONE_AT_PEAK,
            _POPULATION_BEFORE,
            agents.POPULATION,
            _POPULATION_PEAK,
        ),
        quick=Quick({"rounds": 60}, (_LEAVE, _STAY)),
        claims=tuple(c for group, (suffix, *_) in _GROUPS.items() for c in _claims_of(_LEAVE + suffix, group)),
        figure=curves(
            (("accuracy", "average accuracy %", True), (agents.population, "population accuracy %", True)),
            (_LEAVE, _STAY),
            agents.DEFECTIONS,
        ),
        notes=NOTES
        + f"""\
- An agent leaves when it receives a model, so "before the first leaves" is the model of the round before: the
  paper's 46 %. Whether a defection does harm is judged {LATER} rounds on.
""",
    ),
)
