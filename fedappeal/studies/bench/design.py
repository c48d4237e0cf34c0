"""The benchmark's design: tasks, goodwill, behaviours, strategies and floors, written down before its runs.

The core asks for each strategy's ignition point, the goodwill at which half of the seeds live: three tasks, four
levels of goodwill each, clients that sit out while the model is no better than their own. Each other behaviour is
varied alone, on the first task at one level. Levels come from pilots on seeds from 1000 on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedappeal.core.registry import STRATEGIES
from fedappeal.settings.config import ConfigError

SEEDS, OTHER_SEEDS = 20, 10
"""Numbers of seeds: of the core, and of other behaviours and floors. A seed draws people, model and rounds."""
BASELINE = "fedavg"
"""What all strategies are compared with."""
DESIGNED = (BASELINE, "maxfl", "fedalign", "adagd", "fedadam", "scaffold", "qfedavg", "term", "mwfed", "fedprox")
"""The strategies of the fixed design."""
FREE_ROUNDS, LATE = 30, 10
"""Rounds after the mandatory ones, and the last of them, which are judged."""


@dataclass(frozen=True)
class BenchTask:
    """Data, model and local training.

    Attributes:
        title: a line about it.
        settings: keys of the run configuration.
        goodwill: numbers of mandatory rounds, the levels of the core.
        served_at: the training loss at which a client that leaves once it is served does so.
    """

    title: str
    settings: Mapping[str, Any]
    goodwill: tuple[int, int, int, int]
    served_at: float

    @property
    def shown(self) -> int:
        """The level of the page's table, of the floors and of other behaviours."""
        return self.goodwill[-1]


@dataclass(frozen=True)
class BenchBehaviour:
    """What clients do with their freedom.

    Attributes:
        title: a line about it.
        policy: the clients' policy.
        settings: further settings.
        source: who describes it; empty: it is a floor, or ceiling, and is run with FedAvg alone.
    """

    title: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


_SHARED: Mapping[str, Any] = {
    "requirement": "solo",
    "judge-on": "held-out",
    "adaptation-steps": 0,
    "goodwill": -1,
    "on-empty-round": "keep",
    "evaluate-every": 5,
    "evaluate-train": False,
    "solo.steps": 40,
}

TASKS: Mapping[str, BenchTask] = {
    "chem97": BenchTask(
        "Chem97, 30 schools with 50 pupils or more: which grade does a pupil get?",
        {
            **{"task": "chem97", "model": "logistic", "clients": 30, "min-examples": 50, "batch-size": 32},
            **{"local-steps": 2, "learning-rate": 0.1, "solo.learning-rate": 0.3},
        },
        goodwill=(0, 2, 3, 6),
        served_at=1.3,
    ),
    "digits": BenchTask(
        "handwritten digits, 20 clients with few kinds each",
        {
            **{"task": "digits", "model": "mlp", "clients": 20, "partition": "dirichlet", "dirichlet-alpha": 0.3},
            **{
                "min-examples": 20,
                "batch-size": 16,
                "local-steps": 5,
                "learning-rate": 0.1,
                "solo.learning-rate": 0.1,
            },
        },
        goodwill=(0, 8, 10, 14),
        served_at=0.3,
    ),
    "fmnist": BenchTask(
        "Fashion-MNIST, 40 clients in 5 clusters of kinds; the labels of 30 % of the clients are flipped",
        {
            **{"task": "fmnist", "model": "mlp", "clients": 40, "partition": "dirichlet-clusters", "clusters": 5},
            **{"dirichlet-alpha": 0.5, "flip-share": 0.3, "flip-on": "both", "max-train-examples": 300},
            **{"min-examples": 50, "batch-size": 32, "local-steps": 5},
            **{"learning-rate": 0.05, "solo.learning-rate": 0.05},
        },
        goodwill=(0, 10, 15, 25),
        served_at=0.6,
    ),
}
"""People first. `BenchTask.served_at` was set after one run of FedAvg on each task, in which all clients joined."""

CORE = "appeal"
BEHAVIOURS: Mapping[str, BenchBehaviour] = {
    CORE: BenchBehaviour("clients sit out while the model is no better than their own", "appeal", source="MaxFL"),
    "defect": BenchBehaviour("clients leave for good once the model serves them", "defect", source="ADA-GD"),
    "burden": BenchBehaviour(
        "joining has a cost, a loss of 0.05",
        "appeal+costly",
        {"costly.cost": 0.05},
        "Blum et al., One for one, or all for all, ICML 2021: agents keep their own burden low",
    ),
    "coalition": BenchBehaviour(
        "clients leave for good when they are better off alone in two rounds in a row",
        "appeal+inertia",
        {"inertia.rounds": 2, "inertia.then": "leave"},
        "Donahue and Kleinberg, Model-sharing games, AAAI 2021: a coalition is stable if no member gains by leaving",
    ),
    "flexible": BenchBehaviour(
        "clients are away for a while and come back",
        "appeal+markov",
        source="Ruan et al., Towards flexible device participation, AISTATS 2021",
    ),
    "diurnal": BenchBehaviour(
        "clients are available by the time of their day",
        "appeal+diurnal",
        source="Bonawitz et al., Towards federated learning at scale, MLSys 2019",
    ),
    "alone": BenchBehaviour("no client ever joins; each has a model of its own", "always+bernoulli", {}),
    "random-25": BenchBehaviour("each client joins a quarter of the rounds at random", "always+bernoulli", {}),
    "random-50": BenchBehaviour("half of them", "always+bernoulli", {}),
    "random-75": BenchBehaviour("three quarters of them", "always+bernoulli", {}),
    "everyone": BenchBehaviour("everyone always joins: the oracle of participation", "always"),
}
RATES: Mapping[str, float] = {"alone": 0.0, "random-25": 0.25, "random-50": 0.5, "random-75": 0.75, "everyone": 1.0}
"""The floors, by the share of rounds in which a client joins."""
LEAST = min(filter(None, RATES.values()))
"""The least share of random joining that was run; where no client ever joins, the model is untrained."""


@dataclass(frozen=True)
class Cell:
    """One row: a strategy, on a task, under a behaviour, with a number of mandatory rounds."""

    task: str
    behaviour: str
    goodwill: int
    strategy: str

    def __str__(self) -> str:
        return f"{self.place}, {self.strategy}"

    @property
    def place(self) -> str:
        """What strategies are compared in."""
        return f"{self.task}, {self.behaviour} {self.goodwill}"

    @classmethod
    def named(cls, name: str) -> "Cell":
        """Return the cell of a row's name.

        Raises:
            ValueError: it is not a task, a behaviour with goodwill, and a strategy.
        """
        task, behaviour, strategy = parts if len(parts := name.split(", ")) == 3 else ("", "", "")
        behaviour, _, goodwill = behaviour.rpartition(" ")
        if not goodwill.isdecimal():
            raise ValueError(f"row '{name}' is not TASK, BEHAVIOUR GOODWILL, STRATEGY")
        return cls(task, behaviour, int(goodwill), strategy)

    @property
    def baseline(self) -> "Cell":
        """The row that it is compared with."""
        return replace(self, strategy=BASELINE)

    @property
    def seeds(self) -> int:
        """The design's number of seeds."""
        return SEEDS if self.behaviour == CORE else OTHER_SEEDS

    @property
    def settings(self) -> dict[str, Any]:
        """Return the run's settings, but for the seed."""
        task, behaviour = TASKS[self.task], BEHAVIOURS[self.behaviour]
        rounds = {"mandatory-rounds": self.goodwill, "rounds": self.goodwill + FREE_ROUNDS}
        chosen = {"strategy": self.strategy, "participation": behaviour.policy, **behaviour.settings}
        return {**_SHARED, **task.settings, **rounds, **chosen, **self._own(task)}

    def _own(self, task: BenchTask) -> dict[str, Any]:
        """Return the settings that papers tie to the clients' behaviour."""
        leaves = self.behaviour == "defect"
        if (
            self.strategy == "adagd"
        ):  # its clients leave at its epsilon; its round is one step, as long as all others'
            step = task.settings["local-steps"] * task.settings["learning-rate"]
            precision = task.served_at if leaves else task.served_at / 2
            settings = {"precision": precision, "slack": 1.0, "step-size": step, "on-missing": "proceed"}
            return {f"adagd.{key}": value for key, value in settings.items()}
        settings = {"defect.leave-below": task.served_at} if leaves else {}
        if "bernoulli" in BEHAVIOURS[self.behaviour].policy:
            settings |= {"bernoulli.available": RATES[self.behaviour]}
        if self.strategy == "fedalign":
            settings |= {"fedalign.epsilon": 0.2, "fedalign.priority-clients": task.settings["clients"] // 2}
        return settings


def cells(
    tasks: Sequence[str] = (), behaviours: Sequence[str] = (), strategies: Sequence[str] = ()
) -> tuple[Cell, ...]:
    """Return the rows of the fixed design, or of the given part of it.

    Args:
        tasks: names; empty: the design's.
        behaviours: names; empty: the design's, which has the core and its floors, and the others on the first task.
        strategies: names, of this project or ``package.module:Name``; empty: the design's. FedAvg is always among
            them, because all are compared with it.

    Raises:
        ConfigError: an unknown name; it says which there are.
    """
    _check("tasks", tasks, TASKS)
    _check("behaviours", behaviours, BEHAVIOURS)
    for name in strategies:
        STRATEGIES.load(name)
    others = [name for name in BEHAVIOURS if name not in (CORE, *RATES)]
    rows = []
    for number, task in enumerate(TASKS):
        if task not in (tasks or TASKS):
            continue
        shown = TASKS[task].shown
        for behaviour in behaviours or (CORE, *RATES, *(others if number == 0 else ())):
            levels = TASKS[task].goodwill if behaviour == CORE else (shown,)
            names = (BASELINE,) if behaviour in RATES else (BASELINE, *(strategies or DESIGNED))
            rows += [Cell(task, behaviour, level, name) for level in levels for name in dict.fromkeys(names)]
    return tuple(rows)


def _check(option: str, names: Sequence[str], allowed: Mapping[str, object]) -> None:
    for name in names:
        if name not in allowed:
            raise ConfigError(f"{option} = '{name}' is not allowed: {', '.join(allowed)}")
