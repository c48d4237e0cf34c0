"""The claims of an experiment's file: each is made for the groups, rows and columns that it names."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from fedappeal.reproductions.calls import Call, value_of
from fedappeal.studies.data_file import Part
from fedappeal.studies.experiment import Arm, Claim, Contrast, Margin
from fedappeal.views.comparison.measures import LATE, Measure

ALL_OTHERS = "*"

ArmsByKey = Mapping[str, Arm]
"""The rows that a claim may name, by the keys that it has for them."""


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

    def made(self, heading: str, arms: ArmsByKey, columns: Mapping[str, Measure]) -> Iterator[Claim]:
        """Yield the claims of one group: its heading, and its rows."""
        rows = [row for row in self.rows if row in arms] if self.rows else [""]
        others = arms if self.others == (ALL_OTHERS,) else [key for key in self.others if key in arms]
        others = others if self.others else [""]
        for row, column, other in product(rows, self.compared or [ComparedPart(key="")], others):
            if other and other == row:
                continue
            sides = [key for key in (row, other) if key]
            measure = columns.get(column.key)
            if self.as_printed and measure and not _paper_agrees(arms, sides, measure):
                continue
            titles = dict(zip(("row", "other"), (arms[key].shown for key in sides), strict=False))
            words = column.words or (measure.title.removesuffix(f", last {LATE} rounds") if measure else "")
            unit = "points" if measure and measure.percent else ""
            yield Claim(
                self.text.format(**titles, column=words),
                self._margin(arms, sides, column.key),
                heading,
                unit if self.unit is None else self.unit,
                self.inclusive,
                self.ours or column.ours,
            )

    def _margin(self, arms: ArmsByKey, sides: Sequence[str], column: str) -> Margin:
        if self.margin:
            margin, *arguments = value_of(self.margin)
            named = [*sides, *([column] if column else [])]
            return lambda number: margin(lambda row, key: number(arms[row].name, key), *named, *arguments)
        one, other = arms[sides[0]].name, arms[sides[-1]].name
        alone = len(sides) == 1 and not self.other_column
        compared = self.bound if alone else (other, self.other_column or column)
        return Contrast((one, column), compared, -1 if self.lower else 1, self.event)


def _paper_agrees(arms: ArmsByKey, sides: Sequence[str], measure: Measure) -> bool:
    """Return whether the paper's numbers support the first row, or are not printed."""
    values = {arm.name: value for arm in arms.values() if (value := arm.printed(measure)) is not None}
    one, other = (arms[key].name for key in sides)
    return not values or (other in values and values[one] > values[other])
