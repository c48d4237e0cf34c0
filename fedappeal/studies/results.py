"""A study's results: one versioned JSON file, from which its page is made without the runs."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from fedappeal.settings.config import ConfigError
from fedappeal.studies.data_file import Part, first_problem
from fedappeal.studies.experiment import Number
from fedappeal.studies.verdict import Verdict
from fedappeal.system.files import replace_file

_T = TypeVar("_T")

FORMAT: Literal[3] = 3
MOST_BYTES = 50_000_000
MOST = 1e100
"""Bound on a number: squares of such numbers add up to a finite one."""
_Name = Annotated[str, Field(min_length=1, max_length=400)]
_Number = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


class Row(Part):
    """The numbers of one row of a study.

    Attributes:
        name: of the row.
        group: that the row belongs to.
        paper: the paper's numbers, by measure's key.
        seeds: of the finished runs.
        rounds: of each of these runs; empty: not recorded.
        ours: by measure's key a number of each run, in the unit shown, within `MOST`; None: the run has none.
        settings: of its runs.
        skipped: why it could not be run; empty: it could.
        failed: by seed, why a run failed.
        diverged: by seed of a run that diverged, its last round, and the clients that could measure it.
    """

    name: _Name
    group: str
    paper: Mapping[str, Number]
    seeds: tuple[int, ...]
    rounds: tuple[_Count, ...] = ()
    ours: Mapping[str, tuple[_Number | None, ...]]
    settings: Mapping[str, Any] = {}
    skipped: str = ""
    failed: Mapping[int, str] = {}
    diverged: Mapping[int, tuple[str, str]] = {}

    def with_runs(self, new: Self) -> Self:
        """Return the row with further runs; of a common seed the new one.

        What it lacked was run again as a whole: why runs are missing is what the new ones say.
        """
        seeds, rounds = (*self.seeds, *new.seeds), (*self.rounds, *new.rounds)
        place = {seed: number for number, seed in enumerate(seeds)}

        def by_seed(values: Sequence[_T]) -> tuple[_T, ...]:
            return tuple(values[place[seed]] for seed in sorted(place))

        measured = [row.ours for row in (self, new) if row.seeds] or [new.ours]
        common = [key for key in measured[0] if all(key in ours for ours in measured)]
        return new.model_copy(
            update={
                "seeds": by_seed(seeds),
                "rounds": by_seed(rounds) if len(rounds) == len(seeds) else (),
                "ours": {key: by_seed([number for ours in measured for number in ours[key]]) for key in common},
                "settings": new.settings or self.settings,
                "diverged": {**self.diverged, **new.diverged},
            }
        )

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


class StudyResults(Part):
    """The results of a study.

    Attributes:
        format: version of this file's form.
        experiment: the study's name.
        source: where it is in which paper.
        command: that did the runs.
        quick: whether it is the short form.
        seeds: number of seeds that were planned.
        measures: titles of the columns by measure's key; where tasks have different ones the first row's.
        rows: the rows that were planned, and those that could not be run.
        figure: whether there is a picture over the rounds.
        undrawn: rows that are not in it, because they were run later.
        metrics: each task's metric, as runs record it, by task, where tasks have different ones.
        versions: of the packages, as the runs record them.
        verdicts: on the claims, as they follow from the rows.
    """

    format: Literal[3] = FORMAT
    experiment: _Name
    source: str
    command: str
    quick: bool
    seeds: Annotated[int, Field(ge=1)]
    measures: Mapping[str, str]
    rows: tuple[Row, ...]
    figure: bool
    undrawn: tuple[str, ...] = ()
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

    @property
    def failed(self) -> dict[tuple[str, int], str]:
        """The reasons of runs that failed, by row and seed."""
        return {(row.name, seed): reason for row in self.rows for seed, reason in row.failed.items()}

    def joined(self, new: Self, order: Iterable[str], **changed: Any) -> Self:
        """Return the results with further rows, and further seeds of rows.

        Of the same study.

        Args:
            new: the others.
            order: names of all rows; what belongs to another row is left out.
            changed: further fields.
        """
        measures = self.measures or new.measures
        common = measures.keys() & (new.measures or measures).keys()
        rows = {row.name: row for row in self.rows}
        rows |= {row.name: rows[row.name].with_runs(row) if row.name in rows else row for row in new.rows}
        return self.model_copy(
            update={
                "rows": tuple(rows[name].columns(common) for name in dict.fromkeys(order) if name in rows),
                "measures": {key: title for key, title in measures.items() if key in common},
                "metrics": {**self.metrics, **new.metrics},
                "seeds": max(self.seeds, new.seeds),
                "versions": {
                    package: tuple(sorted({*self.versions.get(package, ()), *new.versions.get(package, ())}))
                    for package in {**self.versions, **new.versions}
                },
                **changed,
            }
        )

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
