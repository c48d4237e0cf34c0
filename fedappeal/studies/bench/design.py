"""The benchmark's design: tasks, behaviours and strategies, written down before any run.

The core is every strategy on two tasks, under four behaviours. Each further task and behaviour is varied alone: a
task under the first behaviour, a behaviour on the first task. Clients that match losses do so with FedALIGN alone.

A second part was added when the first had been run: under `appeal` hardly a client joined at the end, with any
strategy. Clients train longer before they may sit out (`TRIED`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedappeal.core.registry import STRATEGIES
from fedappeal.settings.config import ConfigError

SEEDS = 5
BASELINE = "fedavg"
"""What all strategies are compared with."""


@dataclass(frozen=True)
class BenchTask:
    """Data, model and local training.

    Attributes:
        title: a line about it.
        settings: keys of the run configuration.
        target: value of the task's metric whose cost in rounds and megabytes is compared.
        served_at: the training loss at which a client that leaves once it is served does so.
    """

    title: str
    settings: Mapping[str, Any]
    target: float
    served_at: float


@dataclass(frozen=True)
class BenchBehaviour:
    """What clients do with their freedom.

    Attributes:
        title: a line about it.
        policy: the clients' policy, or mixture of policies.
        settings: further settings.
        leaves_when_served: whether clients leave at the task's `BenchTask.served_at`.
    """

    title: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    leaves_when_served: bool = False


_SHARED: Mapping[str, Any] = {
    "requirement": "solo",
    "on-empty-round": "keep",
    "evaluate-every": 5,
    "evaluate-train": False,
    "local-steps": 5,
    "rounds": 100,
    "mandatory-rounds": 10,
    "solo.steps": 40,
}
_PEOPLE: Mapping[str, Any] = {
    "model": "logistic",
    "clients": 60,
    "min-examples": 20,
    "learning-rate": 0.3,
    "batch-size": 32,
    "solo.learning-rate": 0.3,
}

TASKS: Mapping[str, BenchTask] = {
    "fmnist": BenchTask(
        "Fashion-MNIST, 40 clients in 5 clusters of kinds; the labels of 30 % of the clients are flipped",
        {
            **_SHARED,
            **{"task": "fmnist", "model": "mlp", "clients": 40, "partition": "dirichlet-clusters", "clusters": 5},
            **{"dirichlet-alpha": 0.5, "flip-share": 0.3, "flip-on": "both", "max-train-examples": 300},
            **{"min-examples": 50, "learning-rate": 0.05, "batch-size": 32, "solo.learning-rate": 0.05},
        },
        target=0.5,
        served_at=0.6,
    ),
    "movielens": BenchTask(
        "MovieLens, 60 raters: is a film worth four stars? Each has a taste of its own, and trains for two epochs",
        {**_SHARED, **_PEOPLE, "task": "movielens", "local-steps": 0, "local-epochs": 2},
        target=0.56,
        served_at=0.65,
    ),
    "chem97": BenchTask(
        "Chem97, 60 schools: which grade does a pupil get?",
        {**_SHARED, **_PEOPLE, "task": "chem97"},
        target=0.37,
        served_at=1.3,
    ),
    "debian": BenchTask(
        "Debian packages, 60 maintainers: which section is a package in?",
        {**_SHARED, **_PEOPLE, "task": "debian", "learning-rate": 2.0, "solo.learning-rate": 2.0},
        target=0.2,
        served_at=2.5,
    ),
    "digits": BenchTask(
        "handwritten digits, 20 clients with few kinds each",
        {
            **_SHARED,
            **{"task": "digits", "model": "mlp", "clients": 20, "partition": "dirichlet", "dirichlet-alpha": 0.3},
            **{"min-examples": 20, "learning-rate": 0.1, "batch-size": 16, "solo.learning-rate": 0.1},
        },
        target=0.8,
        served_at=0.3,
    ),
}
"""Targets and `BenchTask.served_at` were set after one run of FedAvg on each task, in which all clients joined: so
that some clients get there in time."""

BEHAVIOURS: Mapping[str, BenchBehaviour] = {
    "appeal": BenchBehaviour("clients sit out while the model is no better than their own", "appeal"),
    "defect": BenchBehaviour("clients leave for good once the model serves them", "defect", leaves_when_served=True),
    "always": BenchBehaviour("clients always join", "always"),
    "mixed": BenchBehaviour(
        "half of the clients sit out, a quarter leaves, a quarter always joins",
        "appeal=0.5,defect=0.25,always=0.25",
        leaves_when_served=True,
    ),
    "match": BenchBehaviour(
        "half of the clients have priority, the others join while losses match; with FedAvg, whose server tells no "
        "loss, all join",
        "match",
    ),
    "patient": BenchBehaviour(
        "clients leave for good after five bad rounds in a row",
        "appeal+inertia",
        {"inertia.rounds": 5, "inertia.then": "leave"},
    ),
    "costly": BenchBehaviour(
        "joining has a cost: the model must be better by 0.05", "appeal+costly", {"costly.cost": 0.05}
    ),
    "resting": BenchBehaviour("a client that would sit out rests for five rounds", "appeal+rest", {"rest.rounds": 5}),
    "anticipating": BenchBehaviour("clients leave where training on alone promises more", "anticipate"),
    "seldom": BenchBehaviour(
        "half of the clients always join, half are available in a fifth of the rounds",
        "always=0.5,always+bernoulli=0.5",
        {"bernoulli.available": 0.2},
    ),
    "nightly": BenchBehaviour("clients are available by the time of their day", "always+diurnal"),
    "tried": BenchBehaviour(
        "clients sit out while the model is no better than their own, as under `appeal`, after 30 mandatory rounds",
        "appeal",
        {"mandatory-rounds": 30},
    ),
}

CORE_TASKS = ("fmnist", "movielens")
CORE_BEHAVIOURS = ("appeal", "defect", "mixed", "always")
FEW = (BASELINE, "maxfl", "fedalign", "adagd", "maxfl-adagd")
"""The strategies of what is varied alone."""
MATCHED = ("match",)
WITH_MATCHES = (BASELINE, "fedalign")
"""Strategies under a behaviour that only FedALIGN's server has losses for: with each other one, all clients join."""
AVAILABILITY = ("seldom", "nightly")
ABOUT_AVAILABILITY = ("fedau", "mifa")
"""Strategies that are about clients which are not there: they join the few where availability varies."""
TRIED = "tried"
"""The second part's behaviour, on all tasks. 30 rounds were chosen after one run of FedAvg on each task, with a seed
that is not of the design."""
TRIED_BY_ALL = ("fmnist", "digits")
"""Tasks that every strategy is run on there: in these runs some clients joined at the end; on the others none did."""
ALL = tuple(name for name in STRATEGIES.built_in if name != "oracle")
"""The oracle needs each client's probability of joining: few behaviours have one, and each seed has others."""


@dataclass(frozen=True)
class Cell:
    """One row of a table: a strategy, on a task, under a behaviour."""

    task: str
    behaviour: str
    strategy: str

    def __str__(self) -> str:
        return f"{self.task}, {self.behaviour}, {self.strategy}"

    @classmethod
    def named(cls, name: str) -> "Cell":
        """Return the cell of a row's name.

        Raises:
            ValueError: it is not a task, a behaviour and a strategy.
        """
        parts = name.split(", ")
        if len(parts) != 3:
            raise ValueError(f"row '{name}' is not TASK, BEHAVIOUR, STRATEGY")
        return cls(*parts)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the run's settings, but for the seed."""
        task, behaviour = TASKS[self.task], BEHAVIOURS[self.behaviour]
        chosen = {"strategy": self.strategy, "participation": behaviour.policy, **behaviour.settings}
        return {**task.settings, **chosen, **self._own(task, behaviour)}

    def _own(self, task: BenchTask, behaviour: BenchBehaviour) -> dict[str, Any]:
        """Return the settings that papers tie to the clients' behaviour."""
        if self.strategy in ("adagd", "maxfl-adagd"):  # its clients leave at its epsilon
            precision = task.served_at if behaviour.leaves_when_served else task.served_at / 2
            # Its round is one step: as long as the others' local steps together.
            step = _SHARED["local-steps"] * task.settings["learning-rate"]
            own = {"precision": precision, "slack": 1.0, "step-size": step, "on-missing": "proceed"}
            return {f"{self.strategy}.{key}": value for key, value in own.items()}
        own = {"defect.leave-below": task.served_at} if behaviour.leaves_when_served else {}
        if self.strategy == "fedalign":
            own |= {"fedalign.epsilon": 0.2, "fedalign.priority-clients": task.settings["clients"] // 2}
        if self.strategy == "mwfed" and not task.settings["local-steps"]:  # it shares out steps
            own |= {"local-steps": _SHARED["local-steps"], "local-epochs": 0}
        return own


def cells(
    tasks: Sequence[str] = (), behaviours: Sequence[str] = (), strategies: Sequence[str] = ()
) -> tuple[Cell, ...]:
    """Return the rows of the fixed design, or of the given part of it.

    Args:
        tasks: names; empty: the design's.
        behaviours: names; empty: the design's.
        strategies: names, of this project or ``package.module:Name``; empty: the design's. FedAvg is always among
            them, because all are compared with it.

    Raises:
        ConfigError: an unknown name; it says which there are.
    """
    _check("tasks", tasks, TASKS)
    _check("behaviours", behaviours, BEHAVIOURS)
    for name in strategies:
        STRATEGIES.load(name)
    if tasks or behaviours:
        chosen = [(t, b) for t in tasks or CORE_TASKS for b in behaviours or CORE_BEHAVIOURS]
        return _rows(chosen, strategies or ALL)
    core = [(t, b) for t in CORE_TASKS for b in CORE_BEHAVIOURS]
    alone = [(t, CORE_BEHAVIOURS[0]) for t in TASKS if t not in CORE_TASKS]
    alone += [(CORE_TASKS[0], b) for b in BEHAVIOURS if b not in (*CORE_BEHAVIOURS, *MATCHED, TRIED)]
    matched = [(task, b) for task in CORE_TASKS for b in MATCHED]
    further = [(CORE_TASKS[0], b) for b in AVAILABILITY]
    first = (
        *_rows(core, strategies or ALL),
        *_rows(alone, strategies or FEW),
        *_rows(matched, strategies or WITH_MATCHES),
    )
    about = () if strategies else tuple(Cell(*place, name) for place in further for name in ABOUT_AVAILABILITY)
    second = (
        *_rows([(task, TRIED) for task in TRIED_BY_ALL], strategies or ALL),
        *_rows([(task, TRIED) for task in TASKS if task not in TRIED_BY_ALL], strategies or FEW),
    )
    return (*first, *about, *second)


def _rows(places: Sequence[tuple[str, str]], strategies: Sequence[str]) -> tuple[Cell, ...]:
    names = dict.fromkeys((BASELINE, *strategies))
    return tuple(Cell(task, behaviour, name) for task, behaviour in places for name in names)


def _check(option: str, names: Sequence[str], allowed: Mapping[str, object]) -> None:
    for name in names:
        if name not in allowed:
            raise ConfigError(f"{option} = '{name}' is not allowed: {', '.join(allowed)}")
