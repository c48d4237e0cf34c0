"""The claims of an experiment's file: each is made for the groups, rows and columns that it names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

from fedappeal.reproductions.calls import Call, value_of
from fedappeal.studies.data_file import Part
from fedappeal.studies.experiment import Arm, Claim, Contrast, Margin, Numbers
from fedappeal.views.comparison.measures import LATE, Measure

ALL_OTHERS = "*"


@dataclass(frozen=True)
class ClaimGroup:
    """The rows that a claim may name, under a heading.

    Attributes:
        title: the heading.
        arms: by the key that claims have for them.
    """

    title: str
    arms: Mapping[str, Arm]


class ComparedPart(Part):
    """A column of a claim: its name in the text, and whether ours."""

    key: str
    words: str = ""
    ours: bool = False


class ClaimPart(Part):
    """A claim for each group, row, other row and column that it names.

    Attributes:
        text: with ``{row}``, ``{other}`` and ``{column}`` in place of their titles.
        heading: the group of a claim over rows of several groups, which go by their keys in the record.
        groups: those that it is made for; empty: all that have its rows.
        but: groups that it is not made for.
        rows: of which it is claimed.
        others: rows that each is compared with; ``*``: all others of the group.
        columns: that are compared.
        other_column: of the other row, where it is another one; without others of the row itself.
        bound: the number that a row is compared with, where it is not another row.
        lower: whether it is claimed to be lower.
        event: as `Contrast.event`.
        margin: what computes the margin of a claim that is no comparison: a function, which is given the claim's rows
            and its column, where it has them, and its further arguments.
        as_printed: whether it is left out where the paper's own numbers do not bear it out.
        unit: of the margin; None: points of a share.
        inclusive: as `Claim.inclusive`.
        ours: as `Claim.ours`.
    """

    text: str
    heading: str | None = None
    groups: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    columns: tuple[str | ComparedPart, ...] = ()
    other_column: str = ""
    bound: float = 0.0
    lower: bool = False
    event: float | None = None
    margin: Call = ()
    as_printed: bool = False
    unit: str | None = None
    inclusive: bool = False
    ours: bool = False

    @property
    def compared(self) -> list[ComparedPart]:
        """The claim's columns."""
        return [ComparedPart(key=part) if isinstance(part, str) else part for part in self.columns]

    def made(self, group: ClaimGroup, columns: Mapping[str, Measure]) -> Iterator[Claim]:
        """Yield the claims of one group."""
        columns_compared = self.compared or [ComparedPart(key="")]
        for row, column, other in product(self._rows_in(group), columns_compared, self._others_in(group)):
            if other and other == row:
                continue
            sides = tuple(group.arms[key] for key in (row, other) if key)
            measure = columns.get(column.key)
            if self.as_printed and measure and not _paper_agrees(group, sides, measure):
                continue
            titles = dict(zip(("row", "other"), (arm.shown for arm in sides), strict=False))
            words = column.words or (measure.title.removesuffix(f", last {LATE} rounds") if measure else "")
            yield Claim(
                self.text.format(**titles, column=words),
                self._margin(group, sides, column.key),
                group.title,
                self._unit(measure),
                self.inclusive,
                self.ours or column.ours,
            )

    def _rows_in(self, group: ClaimGroup) -> list[str]:
        """Return the keys of the group's rows; one empty key without rows."""
        return [row for row in self.rows if row in group.arms] if self.rows else [""]

    def _others_in(self, group: ClaimGroup) -> list[str]:
        """Return the keys of the rows that they are compared with."""
        if self.others == (ALL_OTHERS,):
            return [*group.arms]
        return [key for key in self.others if key in group.arms] if self.others else [""]

    def _unit(self, measure: Measure | None) -> str:
        if self.unit is not None:
            return self.unit
        return "points" if measure and measure.percent else ""

    def _margin(self, group: ClaimGroup, sides: Sequence[Arm], column: str) -> Margin:
        if self.margin:
            margin, *arguments = value_of(self.margin)
            keys = {arm.name: key for key, arm in group.arms.items()}
            named = [*(keys[arm.name] for arm in sides), *([column] if column else [])]
            return partial(_margin_of, margin, group, named, arguments)
        one: tuple[str, str] = (sides[0].name, column)
        sign: Literal[1, -1] = -1 if self.lower else 1
        if len(sides) == 1 and not self.other_column:
            return Contrast(one, self.bound, sign, self.event)
        return Contrast(one, (sides[-1].name, self.other_column or column), sign, self.event)


def _margin_of(
    margin: Callable[..., float], group: ClaimGroup, named: Sequence[str], arguments: Sequence[Any], number: Numbers
) -> float:
    """Return a margin of the group's numbers, by the rows' keys in the group."""
    return margin(lambda row, key: number(group.arms[row].name, key), *named, *arguments)


def _paper_agrees(group: ClaimGroup, sides: Sequence[Arm], measure: Measure) -> bool:
    """Return whether the paper's numbers support the first row, or are not printed."""
    values = {arm.name: value for arm in group.arms.values() if (value := arm.printed(measure)) is not None}
    one, other = (arm.name for arm in sides)
    return not values or (other in values and values[one] > values[other])
