"""The benchmark's design: tasks, goodwill, behaviours, strategies and floors, written down before its runs.

The core asks for each strategy's ignition point, the goodwill at which half of the seeds live: three tasks, four
levels of goodwill each, clients that sit out while the model is no better than their own. Each other behaviour is
varied alone, on the first task at one level. ``design.toml`` says what each is.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from fedappeal.core.registry import STRATEGIES
from fedappeal.settings.config import ConfigError
from fedappeal.studies.data_file import Part, in_one_line
from fedappeal.studies.experiment import Arm

SEEDS, OTHER_SEEDS = 20, 10
"""Numbers of seeds: of the core, and of other behaviours and floors. A seed draws people, model and rounds."""
BASELINE = "fedavg"
"""What all strategies are compared with."""
FREE_ROUNDS, LATE = 30, 10
"""Rounds after the mandatory ones, and the last of them, which are judged."""
CORE = "appeal"


class BenchTask(Part):
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


class BenchBehaviour(Part):
    """A behaviour of clients in the benchmark.

    Attributes:
        title: a line about it.
        policy: the clients' policy.
        settings: further settings.
        source: who describes it; empty: it is a floor, or ceiling, and is run with FedAvg alone.
        rate: of a floor, the share of rounds in which a client joins.
    """

    title: str
    policy: str
    settings: Mapping[str, Any] = Field(default_factory=dict)
    source: str = ""
    rate: float | None = None


class _Design(Part):
    strategies: tuple[str, ...]
    settings: Mapping[str, Any]
    tasks: Mapping[str, BenchTask]
    behaviours: Mapping[str, BenchBehaviour]


_FILE = Path(__file__).with_name("design.toml")
with in_one_line(_FILE):
    _DESIGN = _Design.model_validate(tomllib.loads(_FILE.read_text("utf-8")))
DESIGNED, TASKS, BEHAVIOURS = _DESIGN.strategies, _DESIGN.tasks, _DESIGN.behaviours
"""The strategies, tasks and behaviours of the fixed design."""
RATES = {name: behaviour.rate for name, behaviour in BEHAVIOURS.items() if behaviour.rate is not None}
"""The floors, by the share of rounds in which a client joins."""
LEAST = min(filter(None, RATES.values()))
"""The least share of random joining that was run; where no client ever joins, the model is untrained."""
_TASK, _BEHAVIOUR = ("|".join(map(re.escape, names)) for names in (TASKS, BEHAVIOURS))
_KEY = re.compile(rf"({_TASK})-({_BEHAVIOUR})-(0|[1-9][0-9]*)-(.+)")


@dataclass(frozen=True)
class Cell:
    """A row of the benchmark: strategy, task, behaviour and number of mandatory rounds."""

    task: str
    behaviour: str
    goodwill: int
    strategy: str

    @property
    def key(self) -> str:
        """The row's key in results."""
        return f"{self.task}-{self.behaviour}-{self.goodwill}-{self.strategy}"

    @property
    def title(self) -> str:
        """The row in words."""
        return f"{self.place}, {self.strategy}"

    @property
    def arm(self) -> Arm:
        """The row as one of a study's."""
        return Arm(self.key, self.settings, group=self.place, label=self.strategy)

    @property
    def place(self) -> str:
        """The common setting in which strategies are compared."""
        return f"{self.task}, {self.behaviour} {self.goodwill}"

    @classmethod
    def of_key(cls, key: str) -> "Cell":
        """Return the cell of a row's key.

        Raises:
            ValueError: it is not a task and a behaviour of the design, goodwill, and a strategy.
        """
        if not (parts := _KEY.fullmatch(key)):
            raise ValueError(
                f"row {key!r} is not TASK-BEHAVIOUR-GOODWILL-STRATEGY of the design; an older version called rows so"
            )
        return cls(parts[1], parts[2], int(parts[3]), parts[4])

    @property
    def baseline(self) -> "Cell":
        """The row with which the cell is compared."""
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
        return {**_DESIGN.settings, **task.settings, **rounds, **chosen, **self._own(task)}

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
