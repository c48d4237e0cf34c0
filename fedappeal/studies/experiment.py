"""An experiment: a table or a figure of a paper, written down as data.

An experiment's file says what is run (`Arm`, one a row of the table), what is read off each run (`Measure`), what
the paper printed, and what it claims (`Claim`). `fedappeal reproduce` does the rest: see `harness`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedappeal.settings.config import Scalar
from fedappeal.studies.data_file import Part
from fedappeal.views.comparison.measures import Figure, Lines, Measure, unmeasured

OWN = "our own experiment"
"""The source of what is in no paper."""

Number = float | tuple[float, float]
"""A number as the paper prints it (70.86 for 70.86 %), or with its spread: ``(70.86, 2.18)``."""


# -- what is run -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """One row of the table: settings that are run with several seeds.

    Attributes:
        name: its key in the record and its folder's name; unique in its experiment.
        settings: settings beside, or instead of, the shared ones.
        paper: the paper's numbers for this row, by `Measure.key`.
        group: which variant or interpretation the row belongs to; rows of a group stand together.
        runs_in: the experiment whose runs these are too (its arm of the same name and settings); empty: this one.
        label: the row as the paper names it; empty: as its key.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Number] = field(default_factory=dict)
    group: str = ""
    runs_in: str = ""
    label: str = ""

    @property
    def shown(self) -> str:
        """The row's heading under its group's."""
        return self.label or self.name

    @property
    def titled(self) -> str:
        """The row's heading and its group's."""
        return f"{self.shown} ({self.group})" if self.group else self.shown

    def printed(self, measure: Measure) -> float | None:
        """Return the paper's number for a measure, without spread; None if not printed."""
        value = self.paper.get(measure.beside or measure.key)
        return value[0] if isinstance(value, tuple) else value


class Quick(Part):
    """The short form, ``--quick``: about ten seconds on two cores, to see that it works.

    Attributes:
        settings: in place of the shared ones and the arms' (few rounds, few clients).
        arms: names of the arms; empty: all.
    """

    settings: Mapping[str, Any] = Field(default_factory=dict)
    arms: tuple[str, ...] = ()


class Missing(LookupError):
    """Raised where a claim needs a run that was not made."""


class NotRunYet(Missing):
    """Raised where a claim needs a run that is still to be made."""


class Unmeasured(LookupError):
    """Raised where a run lacks a number that a claim needs.

    Its model diverged, or never got there.
    """


Numbers = Callable[[str, str], float]
"""``numbers(arm name, measure key)`` of one seed, in the unit shown; raises `Missing` or `Unmeasured`."""


Margin = Callable[[Numbers], float]
"""By how much something holds for one seed: above 0 where it does."""


@dataclass(frozen=True)
class Contrast:
    """A number less another, or less a bound: the margin of most claims.

    Attributes:
        one: arm and measure.
        other: arm and measure that it is compared with, or a bound.
        sign: -1 where it is claimed to be lower.
        event: what counts is whether a number is at least this one; None: the numbers themselves.
    """

    one: tuple[str, str]
    other: tuple[str, str] | float
    sign: Literal[1, -1] = 1
    event: float | None = None

    def __call__(self, number: Numbers) -> float:
        """Return the margin of one seed."""
        other = self._event_or_value(number(*self.other)) if isinstance(self.other, tuple) else self.other
        return self.sign * (self._event_or_value(number(*self.one)) - other)

    def _event_or_value(self, value: float) -> float:
        return value if self.event is None else float(value >= self.event)


@dataclass(frozen=True)
class Claim:
    """A claim, with its margin from one seed's numbers.

    Attributes:
        text: what is claimed, in a few words that the page prints.
        margin: by how much it holds for one seed: above 0 where it does; of several conditions the least.
        group: which variant or interpretation it is checked for, as `Arm.group`.
        unit: of the margin; empty: that of the number itself, such as a share.
        inclusive: whether it holds with a margin of 0 too: "at least", "none".
        ours: whether the claim, or its bound, is ours and not the paper's.
        by_side: whether only the side of a seed's margin counts, not its size: margins are 1, 0 and -1.
        key: of its verdict; empty: it has none.
    """

    text: str
    margin: Margin
    group: str = ""
    unit: str = ""
    inclusive: bool = False
    ours: bool = False
    by_side: bool = False
    key: str = ""


# -- what came out ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunResult:
    """One finished run.

    Attributes:
        arm: its row.
        seed: its seed.
        lines: its history; of a computed experiment one line, what ``compute`` returned.
        path: its folder.
        recorded: its numbers by `Measure.key`, read from a page's JSON in place of the history; None: not so.
    """

    arm: Arm
    seed: int
    lines: Lines
    path: Path
    recorded: Mapping[str, float | None] | None = None

    def number(self, measure: Measure) -> float | None:
        """Return a measure's number; None without one, or if the model diverged."""
        if self.recorded is not None:
            return self.recorded.get(measure.key)
        return None if self.lines and unmeasured(self.lines[-1]) else measure.number(self.lines)


@dataclass(frozen=True)
class Results:
    """All finished runs of an experiment, in the order of its arms, then by seed.

    Attributes:
        experiment: the experiment.
        runs: the runs.
        waiting: arm and seed of runs that are still to be made.
        failed: why runs failed, by arm and seed.
        skipped: why arms could not be run.
    """

    experiment: "Experiment"
    runs: tuple[RunResult, ...]
    waiting: frozenset[tuple[str, int]] = frozenset()
    failed: Mapping[tuple[str, int], str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that have a finished run."""
        present = {run.arm.name for run in self.runs}
        return tuple(arm for arm in self.experiment.arms if arm.name in present)

    @property
    def groups(self) -> dict[str, list[Arm]]:
        """The arms that have a finished run, by group."""
        members: dict[str, list[Arm]] = {}
        for arm in self.arms:
            members.setdefault(arm.group, []).append(arm)
        return members

    def of(self, arm: str) -> tuple[RunResult, ...]:
        """Return an arm's finished runs, by seed."""
        return tuple(run for run in self.runs if run.arm.name == arm)

    def of_seed(self, seed: int) -> Numbers:
        """Return the numbers of one seed, for a claim."""

        def number(arm: str, key: str) -> float:
            measure = self.experiment.measure(key)
            numbers = [run.number(measure) for run in self.of(arm) if run.seed == seed]
            if not numbers:
                raise (NotRunYet if (arm, seed) in self.waiting else Missing)(f"{arm}: {key}")
            if numbers[0] is None:
                raise Unmeasured(f"{arm}: {key}")
            return numbers[0]

        return number

    def numbers(self, arm: str, measure: Measure) -> list[float]:
        """Return a measure's number for each run of an arm that has it, by seed."""
        numbers = [run.number(measure) for run in self.of(arm)]
        return [value for value in numbers if value is not None]


Drawing = Callable[[Results], Figure]
"""Draws results."""


# -- the experiment --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """A table or a figure.

    Attributes:
        name: what ``fedappeal reproduce`` is given.
        title: one line.
        source: where it is in which paper: ``MaxFL, table 1``.
        arms: the rows.
        claim: what the paper says that it shows.
        settings: shared by all arms: keys of the run configuration, or what ``compute`` reads.
        measures: the columns.
        quick: what ``--quick`` runs.
        seeds: number of seeds of a full run; they are 0, 1, ...
        claims: what is checked for each seed.
        figure: draws the paper's figure from the runs' histories, as ``stem.png`` and ``stem.svg``; None: none.
        glances: pictures drawn from the numbers alone, by what their names end with; they stand before the figure.
        notes: Markdown for the page: interpretations, deviations from the paper.
        compute: for what is no federated run: ``(settings, seed) -> JSON object``, which becomes the run's one line.
        grid: values to search over by setting, for ``--grid``; empty: nothing to search.
        criterion: key of the measure by which the grid's best is chosen.
    """

    name: str
    title: str
    source: str
    arms: tuple[Arm, ...]
    claim: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[Measure, ...] = ()
    quick: Quick = field(default_factory=Quick)
    seeds: int = 5
    claims: tuple[Claim, ...] = ()
    figure: Drawing | None = None
    glances: Mapping[str, Drawing] = field(default_factory=dict)
    notes: str = ""
    compute: Callable[[Mapping[str, Any], int], Mapping[str, Any]] | None = None
    grid: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    criterion: str = ""

    def measure(self, key: str) -> Measure:
        """Return a column."""
        return next(measure for measure in self.measures if measure.key == key)

    def __post_init__(self) -> None:
        names, keys = [arm.name for arm in self.arms], [measure.key for measure in self.measures]
        for kind, doubtful in (("arm", names), ("measure", keys)):
            if doubled := {name for name in doubtful if doubtful.count(name) > 1}:
                raise ValueError(f"{self.name}: {kind} {doubled} is there twice")
        for measure in self.measures:
            if measure.beside and measure.beside not in keys:
                raise ValueError(f"{self.name}: {measure.key} stands beside {measure.beside}, which is no measure")
        for arm in self.arms:
            if unknown := set(arm.paper) - set(keys):
                raise ValueError(f"{self.name}: {arm.name} has numbers for {unknown}, which is no measure")
        if unknown := set(self.quick.arms) - set(names):
            raise ValueError(f"{self.name}: quick names {unknown}, which is no arm")
        if self.criterion and self.criterion not in keys:
            raise ValueError(f"{self.name}: criterion {self.criterion} is no measure")
