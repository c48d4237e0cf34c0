"""Tables in a program's memory: pandas DataFrames and Hugging Face datasets; neither is imported here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedappeal.data.arrow import cells_of
from fedappeal.data.cells import Cells
from fedappeal.data.columns import places_of, plain
from fedappeal.data.table import Problems, RowNumbers, Table

_NUMPY = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}
_ROWS_AT_ONCE = 8_192


def package_of(data: object) -> str:
    """Return ``pandas`` or ``datasets`` for their tables; empty for other objects."""
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(data).__mro__}
    return "pandas" if ("pandas", "DataFrame") in bases else "datasets" if ("datasets", "Dataset") in bases else ""


class Frame(Table):
    """A pandas DataFrame."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.names = [plain(str(name)) for name in frame.columns]

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        """Values of the columns of pandas' type ``category``."""
        kinds = zip(self.names, self.frame.dtypes, strict=True)
        return {name: list(map(str, kind.categories)) for name, kind in kinds if hasattr(kind, "categories")}

    def pieces(self, wanted: Sequence[str], problems: Problems) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield the wanted columns of the whole frame as one piece."""
        places = places_of(self.names, wanted)
        yield RowNumbers(1, len(self.frame)), [cells_of_series(self.frame.iloc[:, place]) for place in places]


def cells_of_series(series: Any) -> Cells:
    """Return a column's cells, of whatever type pandas has it."""
    missing = series.isna().to_numpy(dtype=bool)
    kind = series.dtype.kind
    if kind in _NUMPY and not missing.any():
        return series.to_numpy(dtype=_NUMPY[kind])  # type: ignore[no-any-return]
    return [None if gone else cell for cell, gone in zip(series.astype(object).tolist(), missing, strict=True)]


class HuggingFace(Table):
    """A Hugging Face dataset.

    Attributes:
        dataset: with its columns called as in `names`, where no two are one name.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.names = list(map(plain, dataset.column_names))
        if self.names != dataset.column_names and len({*self.names}) == len(self.names):
            dataset = dataset.rename_columns(dict(zip(dataset.column_names, self.names, strict=True)))
        self.dataset = dataset
        self.class_names = {
            name: list(kind.names) for name, kind in dataset.features.items() if getattr(kind, "names", None)
        }

    def pieces(self, wanted: Sequence[str], problems: Problems) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield the wanted columns, a fixed number of rows at a time."""
        places_of(self.names, wanted)
        first = 1
        for part in self.dataset.select_columns(list(wanted)).with_format("arrow").iter(_ROWS_AT_ONCE):
            batch = part.combine_chunks()
            cells = [cells_of(batch.column(name).chunks[0], name) for name in wanted]
            yield RowNumbers(first, part.num_rows), cells
            first += part.num_rows


def is_one_number(feature: Any) -> bool:
    """Whether a Hugging Face column holds one value a row, and no text."""
    dtype = str(getattr(feature, "dtype", ""))
    return type(feature).__name__ in ("Value", "ClassLabel") and dtype not in ("string", "large_string", "binary")
