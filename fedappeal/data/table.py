"""What every format of a table is read as: its columns' names, and pieces of its rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from fedappeal.data.cells import Cells
from fedappeal.data.problems import Problems, RowNumbers


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
