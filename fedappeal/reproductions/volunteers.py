"""Our own comparison: every strategy with every way in which clients behave.

Clients, data and models are the same throughout. Clients sit out while the model is no better than their own (MaxFL),
leave for good once it serves them (ADA-GD), or join as long as their losses match the priority clients' (FedALIGN).
"""

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any

from fedappeal.studies.experiment import OWN, Arm, Claim, Contrast, Experiment, Quick, at_least
from fedappeal.studies.pictures import by_seed
from fedappeal.views.comparison import measures
from fedappeal.views.comparison.measures import Measure

CLIENTS = 40
REACHED = 0.5
"""The accuracy whose cost is compared."""

LIVES = 20.0
"""A run lives when at least this many per cent of the clients asked join in its last rounds."""

SATISFIED_AT = 0.6
"""The loss at which a client leaves. At 0.4 no client of FedAvg gets there, with the flipped labels; at 0.8 both rows
of ADA-GD end after about 40 rounds."""

PRECISION = 0.3
"""ADA-GD's epsilon where clients do not leave; where they leave it is the loss at which they do."""

SLACK, STEP_SIZE = 1.0, 0.1
"""ADA-GD's."""

SETTINGS: Mapping[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "clients": CLIENTS,
    "unseen-clients": 20,
    "partition": "dirichlet-clusters",
    "clusters": 5,
    "dirichlet-alpha": 0.5,
    "train-share": 0.6,
    "min-examples": 50,
    "max-train-examples": 300,
    "flip-share": 0.3,
    "flip-on": "both",
    "rounds": 200,
    "mandatory-rounds": 20,
    "on-empty-round": "keep",
    "requirement": "solo",
    "solo.steps": 40,
    "solo.learning-rate": 0.05,
    "learning-rate": 0.05,
    "batch-size": 32,
    "local-steps": 5,
    "evaluate-every": 5,
    "evaluate-train": False,
}

BEHAVIOURS: Mapping[str, tuple[str, str]] = {
    "sit out": ("Clients sit out while the model is no better than their own", "appeal"),
    "leave": ("Clients leave for good once the model serves them", "defect"),
    "match": ("Half of the clients have priority, the others join while losses match", "match"),
    "always": ("Clients always join", "always"),
}
"""Behaviour -> heading of its rows, and the clients' policy."""

STRATEGIES: Mapping[str, str] = {
    "FedAvg": "fedavg",
    "MaxFL": "maxfl",
    "FedALIGN": "fedalign",
    "ADA-GD": "adagd",
    "MaxFL+ADA-GD": "maxfl-adagd",
}


def _own(strategy: str, policy: str) -> Mapping[str, Any]:
    """Return the settings of a row's strategy and policy."""
    if strategy in ("adagd", "maxfl-adagd"):  # its clients leave at its epsilon
        precision = SATISFIED_AT if policy == "defect" else PRECISION
        settings = {"precision": precision, "slack": SLACK, "step-size": STEP_SIZE}
        return {f"{strategy}.{key}": value for key, value in settings.items()}
    leave = {"defect.leave-below": SATISFIED_AT} if policy == "defect" else {}
    match = {"fedalign.epsilon": 0.2, "fedalign.priority-clients": CLIENTS // 2} if strategy == "fedalign" else {}
    return {**leave, **match}


def _a_round(lines: measures.Lines) -> float | None:
    sizes = [
        megabytes for megabytes, line in zip(measures.training_megabytes(lines), lines, strict=False) if line["asked"]
    ]
    return fmean(sizes) if sizes else None


def _sent(lines: measures.Lines) -> float | None:
    """Share that sent an update of the clients asked; a history counts those that FedALIGN refuses by themselves."""
    chosen = lines[-measures.LATE :]
    asked = sum(int(line["asked"]) for line in chosen)
    return sum(int(line["joined"]) + int(line.get("refused", 0)) for line in chosen) / asked if asked else None


_share, _cost = partial(Measure, percent=True, digits=0), partial(Measure, better="lower", digits=0)
_MEASURES = (
    _share("joined", "taken in %", measures.joined_share()),
    _share("joined-late", f"taken in %, last {measures.LATE} rounds", measures.joined_share(measures.LATE)),
    _share("sent-late", f"joined %, last {measures.LATE} rounds", _sent),
    _share("stayed", "clients that did not leave %", measures.stayed()),
    Measure("gm-appeal", "GM-Appeal", measures.late("gm_appeal")),
    Measure("accuracy", "accuracy %", measures.late("accuracy"), percent=True, digits=1),
    Measure("worst", "worst decile %", measures.late("worst_decile_accuracy"), percent=True, digits=1),
    Measure("unseen", "unseen: accuracy %", measures.late("unseen_accuracy"), percent=True, digits=1),
    Measure("rounds", "rounds run", measures.last("round"), better="", digits=0),
    Measure("megabytes", "MB a round", _a_round, better="lower", digits=1),
    _cost("rounds-to", f"rounds to {100 * REACHED:.0f} %", measures.rounds_to("accuracy", REACHED)),
    _cost("megabytes-to", f"MB to {100 * REACHED:.0f} %", measures.megabytes_to("accuracy", REACHED)),
)


def _name(strategy: str, behaviour: str) -> str:
    return f"{strategy}, {behaviour}"


def _arm(name: str, behaviour: str) -> Arm:
    (group, policy), strategy = BEHAVIOURS[behaviour], STRATEGIES[name]
    settings = {"strategy": strategy, "participation": policy, **_own(strategy, policy)}
    return Arm(_name(name, behaviour), settings, group=group, label=name)


def _ahead(behaviour: str, strategy: str, measure: str, text: str, of: str = "FedAvg") -> Claim:
    sides = [(_name(name, behaviour), measure) for name in (strategy, of)]
    margin = Contrast(sides[0], sides[1], event=LIVES if measure == "sent-late" else None)
    return Claim(text, margin, BEHAVIOURS[behaviour][0], "" if measure == "gm-appeal" else "points")


def _loses_no_client(strategy: str) -> Claim:
    margin = at_least(_name(strategy, "leave"), "stayed", 100.0)
    return Claim(f"{strategy} loses no client", margin, BEHAVIOURS["leave"][0], "points", inclusive=True)


EXPERIMENTS = (
    Experiment(
        name="volunteers",
        title="Volunteers: which strategy for which behaviour",
        source=OWN,
        claim="Each paper assumes one way in which clients behave. Here all strategies meet all of them, on the "
        "same clients.",
        settings=SETTINGS,
        arms=tuple(_arm(name, behaviour) for behaviour in BEHAVIOURS for name in STRATEGIES),
        measures=_MEASURES,
        quick=Quick(
            {"clients": 12, "unseen-clients": 4, "rounds": 16, "mandatory-rounds": 4},
            ("FedAvg, sit out", "MaxFL, sit out", "ADA-GD, leave", "MaxFL+ADA-GD, leave"),
        ),
        claims=(
            *(
                _ahead("sit out", "MaxFL", "sent-late", f"more runs of MaxFL than of {name} live", name)
                for name in STRATEGIES
                if name != "MaxFL"
            ),
            _ahead("sit out", "MaxFL", "gm-appeal", "MaxFL's model appeals to more clients than FedAvg's"),
            _ahead("leave", "ADA-GD", "stayed", "ADA-GD loses fewer clients than FedAvg"),
            _ahead("leave", "ADA-GD", "worst", "ADA-GD serves the worst decile better than FedAvg"),
            _loses_no_client("ADA-GD"),
            _loses_no_client("MaxFL+ADA-GD"),
            *(
                _ahead(behaviour, "MaxFL+ADA-GD", "gm-appeal", "MaxFL+ADA-GD appeals to more than ADA-GD", "ADA-GD")
                for behaviour in ("leave", "always")
            ),
            _ahead("match", "FedALIGN", "accuracy", "FedALIGN is more accurate than FedAvg"),
        ),
        glances={"-joined": by_seed("sent-late", 2, LIVES)},
        notes=f"""\
- Labels of 30 % of the clients are flipped in training and test data alike: no single model serves all.
- {CLIENTS} clients train, all are asked every round; 20 more only evaluate. ADA-GD takes one full-batch gradient
  step a round, the others five local steps. MaxFL+ADA-GD is ADA-GD's step over MaxFL's weighted gradients
  (docs/adagd.md).
- "Leave": a client is gone at a loss of {SATISFIED_AT}, which is ADA-GD's epsilon there; elsewhere it is
  {PRECISION}. Chosen after a look at 0.4, which no client of FedAvg reaches, and 0.8, where ADA-GD's runs end after
  40 rounds.
- "Match" is FedALIGN's behaviour; with another strategy all join. "Taken in" leaves out updates that FedALIGN
  refuses.
- A run lives when at least {LIVES:g} % of the clients asked join in its last {measures.LATE} rounds.
""",
    ),
)
