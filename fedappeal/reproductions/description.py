"""An experiment's TOML file: its runs, the paper's numbers and claims, a page's text.

What is computed is named there as ``@module:name`` of this package. A file that ``extends`` others of its folder has
all that they have, and its own keys in place of theirs.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from fedappeal.record.columns import Better
from fedappeal.reproductions.calls import Call, evaluate_call, find_name
from fedappeal.reproductions.claims import ALL_OTHERS, ClaimPart
from fedappeal.settings.config import Scalar
from fedappeal.studies import pictures
from fedappeal.studies.data_file import Part, in_one_line
from fedappeal.studies.experiment import Arm, Claim, Drawing, Experiment, Number, Quick
from fedappeal.views.comparison import measures
from fedappeal.views.comparison.measures import Measure

FOLDER = Path(__file__).parent
MAIN = "main"
"""The key of the group whose rows have no further word in theirs."""

Settings = Mapping[str, Any]


class RowPart(Part):
    """A row, as it stands in every group that has it.

    Attributes:
        title: as the paper names it.
        settings: of its runs.
        runs_in: the experiment whose runs its own are too; empty: this one.
    """

    title: str
    settings: Settings = Field(default_factory=dict)
    runs_in: str = ""


class GroupPart(Part):
    """A group of rows: a reading of the paper, or a part of a figure.

    A reading settles what the paper leaves open.

    Attributes:
        title: above its rows.
        arms: its rows' keys in the record, with ``{row}`` for the row's; empty: ``{row}-KEY``, in ``main`` the
            row's alone.
        settings: of its runs, where a row has no other.
        rows: its rows, or by row further settings, which go before all; empty: those of the paper's table, or all.
        paper: the paper's table with its numbers.
        against: rows of other groups that its own are compared with: the group of each.
        runs_in: as `RowPart.runs_in`.
    """

    title: str = ""
    arms: str = ""
    settings: Settings = Field(default_factory=dict)
    rows: tuple[str, ...] | Mapping[str, Settings] = ()
    paper: str = ""
    against: Mapping[str, str] = Field(default_factory=dict)
    runs_in: str = ""


class PaperPart(Part):
    """A table of the paper: its columns' keys, and each row's numbers.

    A row may end early.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[int | Number, ...]]


class ColumnPart(Part):
    """A column of a table (`Measure`).

    ``read``: a reading with its arguments, by default the last value of its key.
    """

    title: str
    read: Call = ()
    percent: bool = False
    better: Better = "higher"
    digits: int = 2
    beside: str = ""


class Description(Part):
    """The content of an experiment's file; other fields are as in `Experiment`.

    Attributes:
        introduction: notes that stand before the experiment's own.
        groups: by key; empty: the rows stand without a heading.
        only_groups: those that the experiment has; empty: all.
        paper: the paper's tables.
        printed: whether rows have the paper's numbers.
        runs_in: as `RowPart.runs_in`, for all rows.
        columns: by key.
        shown: columns that the experiment has, in their order; empty: all.
        figure: what draws it: a name, or a table with ``draw``, what makes such a function, and its arguments.
        glances: by the ending of its file's name.
    """

    title: str
    source: str
    claim: str
    introduction: str = ""
    notes: str = ""
    seeds: int = Field(5, ge=1)
    settings: Settings = Field(default_factory=dict)
    rows: Mapping[str, RowPart]
    groups: Mapping[str, GroupPart] = Field(default_factory=lambda: {MAIN: GroupPart()})
    only_groups: tuple[str, ...] = ()
    paper: Mapping[str, PaperPart] = Field(default_factory=dict)
    printed: bool = True
    runs_in: str = ""
    columns: Mapping[str, ColumnPart]
    shown: tuple[str, ...] = ()
    claims: tuple[ClaimPart, ...] = ()
    quick: Quick = Quick()
    grid: Mapping[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    criterion: str = ""
    compute: str = ""
    figure: str | Mapping[str, Any] = ""
    glances: Mapping[str, str | Mapping[str, Any]] = Field(default_factory=dict)

    def experiment(self, name: str) -> Experiment:
        """Return the experiment."""
        arms = {key: self._arms(key) for key in self.only_groups or self.groups}
        columns = {key: self._column(key) for key in self.shown or self.columns}
        return Experiment(
            name=name,
            arms=tuple(arm for of_group in arms.values() for arm in of_group.values()),
            measures=tuple(columns.values()),
            title=self.title,
            source=self.source,
            claim=self.claim,
            settings=self.settings,
            quick=self.quick,
            seeds=self.seeds,
            criterion=self.criterion,
            claims=tuple(claim for part in self.claims for claim in self._claims(part, arms, columns)),
            figure=self._drawing(self.figure) if self.figure else None,
            glances={ending: self._drawing(drawing) for ending, drawing in self.glances.items()},
            notes=self.introduction + self.notes,
            compute=find_name(self.compute) if self.compute else None,
            grid=self.grid if self.criterion else {},
        )

    def _arms(self, place: str) -> dict[str, Arm]:
        """Return a group's rows by key."""
        group = self.groups[place]
        form = group.arms or ("{row}" if place == MAIN else f"{{row}}-{place}")
        paper = self.paper.get(group.paper)
        by_row = group.rows if isinstance(group.rows, Mapping) else {key: {} for key in group.rows}
        arms = {}
        for key in by_row or (paper.rows if paper else self.rows):
            row = self.rows[key]
            arms[key] = Arm(
                form.format(row=key),
                {**group.settings, **row.settings, **by_row.get(key, {})},
                dict(zip(paper.columns, paper.rows.get(key, ()), strict=False)) if paper and self.printed else {},
                group.title,
                row.runs_in or group.runs_in or self.runs_in,
                row.title,
            )
        return arms

    def _column(self, key: str) -> Measure:
        part = self.columns[key]
        of = evaluate_call(part.read or ("last", key), measures)
        return Measure(key, part.title, of, part.percent, part.better, part.digits, part.beside)

    def _claims(
        self, part: ClaimPart, arms: Mapping[str, Mapping[str, Arm]], columns: Mapping[str, Measure]
    ) -> Iterator[Claim]:
        all_arms = {arm.name: arm for of_group in arms.values() for arm in of_group.values()}
        rows = self.rows if part.heading is None else all_arms
        for kind, names, there in (
            ("row", {*part.rows, *part.others} - {ALL_OTHERS}, rows),
            ("column", {*(column.key for column in part.compared), part.other_column} - {""}, columns),
            ("group", {*part.groups, *part.but}, self.groups),
        ):
            if unknown := names - set(there):
                raise ValueError(f"claims: there is no {kind} '{min(unknown)}'")
        if part.heading is not None:
            yield from part.made(part.heading, all_arms, columns)
            return
        for key in part.groups or arms:
            if key not in part.but:
                group = self.groups[key]
                beside = {row: arms[other][row] for row, other in group.against.items()}
                yield from part.made(group.title, {**beside, **arms[key]}, columns)

    def _drawing(self, drawing: str | Mapping[str, Any]) -> Drawing:
        if isinstance(drawing, str):
            return cast(Drawing, find_name(drawing, pictures))
        titles = {
            "order": {key: row.title for key, row in self.rows.items()},
            "shown": {key: group.title for key, group in self.groups.items()},
        }
        arguments = {
            key: [titles[key][part] for part in value] if key in titles else value
            for key, value in drawing.items()
            if key != "draw"
        }
        return cast(Drawing, evaluate_call((drawing["draw"], arguments), pictures))


def read_experiment(path: Path, name: str) -> Experiment:
    """Return the experiment that a file describes.

    Args:
        path: the file's.
        name: the experiment's.

    Raises:
        ConfigError: it is no such description: one line that names the file and the key.
    """
    with in_one_line(path):
        return Description.model_validate(_read(path)).experiment(name)


def _read(path: Path) -> dict[str, Any]:
    """Return a file's tables, those of the files that it extends included."""
    own = tomllib.loads(path.read_text("utf-8"))
    whole: dict[str, Any] = {}
    for name in own.pop("extends", ()):
        whole = _over(whole, _read(path.with_name(f"{name}.toml")))
    return _over(whole, own)


def _over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return a table updated by another, table by table."""
    tables = [key for key in base.keys() & own.keys() if isinstance(base[key], dict) and isinstance(own[key], dict)]
    return {**base, **own, **{key: _over(base[key], own[key]) for key in tables}}
