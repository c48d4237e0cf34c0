"""A study's results: one versioned JSON file, from which its page is made without the runs."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedappeal.settings.config import ConfigError
from fedappeal.studies.data_file import first_problem
from fedappeal.studies.experiment import Arm, Number, RunResult
from fedappeal.studies.verdict import Verdict
from fedappeal.system.files import replace_file
from fedappeal.views.comparison.measures import Measure

_T = TypeVar("_T")

FORMAT: Literal[2] = 2
MOST_BYTES = 50_000_000
MOST = 1e100
"""Bound on a number: squares of such numbers add up to a finite one."""
_Name = Annotated[str, Field(min_length=1, max_length=400)]
_Number = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(_Model):
    """The numbers of one row of a study.

    Attributes:
        name: of the row.
        group: that the row belongs to.
        paper: the paper's numbers, by measure's key.
        seeds: of the finished runs.
        rounds: of each of these runs; empty: not recorded.
        ours: by measure's key a number of each run, in the unit shown, within `MOST`; None: the run has none.
    """

    name: _Name
    group: str
    paper: Mapping[str, Number]
    seeds: tuple[int, ...]
    rounds: tuple[_Count, ...] = ()
    ours: Mapping[str, tuple[_Number | None, ...]]

    @classmethod
    def of(cls, arm: Arm, runs: Sequence[RunResult], measures: Sequence[Measure]) -> Self:
        """Return the numbers of a row's finished runs."""
        return cls(
            name=arm.name,
            group=arm.group,
            paper=dict(arm.paper),
            seeds=tuple(run.seed for run in runs),
            rounds=tuple(len(run.lines) for run in runs),
            ours={m.key: tuple(_number_or_none(run.number(m)) for run in runs) for m in measures},
        )

    def with_runs(self, new: Self) -> Self:
        """Return the row with further runs; of a common seed the new one."""
        seeds, rounds = (*self.seeds, *new.seeds), (*self.rounds, *new.rounds)
        place = {seed: number for number, seed in enumerate(seeds)}

        def by_seed(values: Sequence[_T]) -> tuple[_T, ...]:
            return tuple(values[place[seed]] for seed in sorted(place))

        ours = {key: by_seed((*self.ours[key], *new.ours[key])) for key in self.ours if key in new.ours}
        recorded = by_seed(rounds) if len(rounds) == len(seeds) else ()
        return self.model_copy(update={"seeds": by_seed(seeds), "rounds": recorded, "ours": ours})

    def columns(self, keys: Collection[str]) -> Self:
        """Return the row with these columns alone."""
        return self.model_copy(update={"ours": {key: ours for key, ours in self.ours.items() if key in keys}})

    @model_validator(mode="after")
    def _one_number_a_run(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a run stands there twice")
        lengths = {*map(len, self.ours.values()), *([len(self.rounds)] if self.rounds else [])}
        if lengths - {len(self.seeds)}:
            raise ValueError(f"row '{self.name}' has not as many numbers as seeds")
        return self


def _number_or_none(number: float | None) -> float | None:
    return number if number is not None and abs(number) <= MOST else None


class StudyResults(_Model):
    """The results of a study.

    Attributes:
        format: version of this file's form.
        experiment: the study's name.
        source: where it is in which paper.
        command: that did the runs.
        quick: whether it is the short form.
        seeds: number of seeds that were planned.
        measures: titles of the columns by measure's key; where tasks have different ones the first row's.
        rows: the rows that were planned, and those with the paper's numbers that could not be run.
        figure: whether there is a picture over the rounds.
        undrawn: rows that are not in it, because they were run later.
        diverged: last round, and clients that could measure it, of runs that diverged.
        skipped: rows that could not be run, with their reasons.
        failed: runs that failed, with theirs.
        settings: of each row's runs, by row.
        metrics: each task's metric, as runs record it, by task, where tasks have different ones.
        versions: of the packages, as the runs record them.
        verdicts: on the claims, as they follow from the rows.
    """

    format: Literal[2] = FORMAT
    experiment: _Name
    source: str
    command: str
    quick: bool
    seeds: Annotated[int, Field(ge=1)]
    measures: Mapping[str, str]
    rows: tuple[Row, ...]
    figure: bool
    undrawn: tuple[str, ...] = ()
    diverged: Mapping[str, tuple[str, str]]
    skipped: Mapping[str, str]
    failed: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Mapping[str, Any]] = {}
    versions: Mapping[str, tuple[str, ...]]
    verdicts: tuple[Verdict, ...] = ()

    @model_validator(mode="after")
    def _no_row_twice(self) -> Self:
        if len({row.name for row in self.rows}) < len(self.rows):
            raise ValueError("a run stands there twice")
        return self

    def lacking(self, name: str, seeds: int) -> tuple[int, ...]:
        """Return the seeds below `seeds` for which the row has no finished run."""
        finished = {seed for row in self.rows if row.name == name for seed in row.seeds}
        return tuple(seed for seed in range(seeds) if seed not in finished)

    def part(self, names: Iterable[str], keys: Collection[str], **changed: Any) -> Self:
        """Return the results of these rows and columns, in this order.

        ``changed``: further fields.
        """
        place = {name: number for number, name in enumerate(dict.fromkeys(names))}

        def of(values: Mapping[str, _T]) -> dict[str, _T]:
            """Return the entries of these rows, by row or by run."""
            here = [(place[row_of(name)], name) for name in values if row_of(name) in place]
            return {name: values[name] for _, name in sorted(here, key=lambda item: item[0])}

        return self.model_copy(
            update={
                "rows": tuple(row.columns(keys) for row in of({row.name: row for row in self.rows}).values()),
                "measures": {key: title for key, title in self.measures.items() if key in keys},
                "undrawn": tuple(of(dict.fromkeys(self.undrawn))),
                "diverged": of(self.diverged),
                "skipped": of(self.skipped),
                "failed": of(self.failed),
                "settings": of(self.settings),
                **changed,
            }
        )

    def joined(self, new: Self, order: Sequence[str], **changed: Any) -> Self:
        """Return the results with further rows, and further seeds of rows.

        Of the same study.

        Args:
            new: the others.
            order: names of all rows; what belongs to another row is left out.
            changed: further fields.
        """
        common = self.measures.keys() & new.measures.keys()
        before, again = {row.name: row for row in self.rows}, {*new.settings, *new.skipped}
        added = (before[row.name].with_runs(row) if row.name in before else row for row in new.rows)
        # What a row lacked is run again as a whole: its reasons are those of the new runs.
        once_more = self.part((name for name in order if name not in again), common)
        return self.model_copy(
            update={
                "rows": tuple((before | {row.name: row for row in added}).values()),
                **{key: {**getattr(self, key), **getattr(new, key)} for key in ("diverged", "settings", "metrics")},
                **{key: {**getattr(once_more, key), **getattr(new, key)} for key in ("skipped", "failed")},
                "seeds": max(self.seeds, new.seeds),
                "versions": {
                    package: tuple(sorted({*self.versions.get(package, ()), *new.versions.get(package, ())}))
                    for package in {**self.versions, **new.versions}
                },
            }
        ).part(order, common, **changed)

    def write(self, path: Path) -> Path:
        """Write the file; return its path."""
        replace_file(path, (json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n").encode())
        return path

    @classmethod
    def read(cls, path: Path, name: str) -> Self:
        """Return the results of a study that a file holds.

        Raises:
            ConfigError: it is missing, too large, of another study or of another form; one line that names it.
        """
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ConfigError(f"{path} cannot be read: it has more than {MOST_BYTES:,} bytes")
            values = json.loads(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
        if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
            again = "the command that did its runs writes it again"
            raise ConfigError(f"{path} is not allowed: format {values['format']!r}, not {FORMAT}; {again}")
        if not isinstance(values, dict) or values.get("experiment") != name:
            raise ConfigError(f"{path} holds no numbers of {name}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "missing" and len(first["loc"]) == 1:
                raise ConfigError(f"{path} has no {first['loc'][0]}: it was written by an older version") from None
            raise ConfigError(f"{path} is not allowed: {first_problem(error)}") from None


def row_of(name: str) -> str:
    """Return the row that a run, or a row, belongs to."""
    return name.rpartition(", seed ")[0] or name
