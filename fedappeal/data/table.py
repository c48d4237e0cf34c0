"""What every format of a table is read as: its columns' names, pieces of its rows, and what is wrong with them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.cells import Cells
from fedappeal.data.columns import Unfit
from fedappeal.protocol.keys import DataProblem

_SHOWN = 5


@dataclass
class _Kind:
    """The rows with one problem in one column: the first's text, and their number."""

    problem: DataProblem
    text: str
    rows: int = 0


class Problems:
    """The problems of a table's rows, gathered for one message."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def add(self, problem: DataProblem, kind: str, where: str, reason: str, column: str = "", rows: int = 1) -> None:
        """Add rows with a problem.

        Args:
            problem: what the server may learn.
            kind: rows of one kind and column are counted together.
            where: the first row.
            reason: what is wrong with it.
            column: the column's name; empty: the whole row.
            rows: how many.
        """
        text = f"{where}, column {column}: {reason}" if column else f"{where} {reason}"
        self._kinds.setdefault((column, kind), _Kind(problem, text)).rows += rows

    def check(self) -> None:
        """Raise Unfit with the first five kinds, if there are any."""
        if not self._kinds:
            return
        kinds = list(self._kinds.values())
        texts = [k.text + (f" (and {k.rows - 1} more of its rows)" if k.rows > 1 else "") for k in kinds[:_SHOWN]]
        more = [f"{len(kinds) - _SHOWN} more kinds of problems"] if len(kinds) > _SHOWN else []
        raise Unfit(kinds[0].problem, "; ".join([*texts, *more]))


@dataclass(frozen=True)
class RowNumbers:
    """The numbers of some rows in their table.

    Attributes:
        first: number of the first, counted from 1.
        count: how many.
        lines: the line of each in its file; None: they have none.
    """

    first: int
    count: int
    lines: Sequence[int] | None = None

    def where(self, place: int) -> str:
        """Return the words for a row in messages, counted from 0."""
        line = f" (line {self.lines[place]})" if self.lines is not None else ""
        return f"row {self.first + place}{line}"

    def add_to(
        self, problems: Problems, problem: DataProblem, kind: str, column: str, wrong: NDArray[np.bool_], reason: str
    ) -> None:
        """Add the wrong rows, if any; ``reason`` is of the first."""
        if count := int(wrong.sum()):
            problems.add(problem, kind, self.where(int(wrong.argmax())), reason, column, count)


class Table(ABC):
    """A table that is read in pieces.

    Attributes:
        names: of its columns, in their order, as `plain` writes them; one may be empty, or there twice.
        class_names: of columns of numbers 0..C-1 that stand for names: these names.
    """

    names: Sequence[str] = ()
    class_names: Mapping[str, Sequence[str]] = {}

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        """Values of the columns that the table itself says are categories."""
        return self.class_names

    @abstractmethod
    def pieces(self, wanted: Sequence[str], problems: Problems) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield some rows after others, with their cells of the wanted columns.

        Args:
            wanted: names of columns that are there once.
            problems: gathers the rows that cannot be read, which are left out.

        Raises:
            ValueError: the file cannot be read; Unfit: the same, or a column does not fit.
        """
