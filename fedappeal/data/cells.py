"""What a cell says: a number, a class or a text, whatever its table's format."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.columns import name_list, plain

Cells = NDArray[Any] | Sequence[object]
"""A column of some rows: an array of numbers, or a list of texts, numbers and booleans, None where one is missing."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_BOOLEANS = {"true": 1.0, "false": 0.0}


def number_of(cell: object) -> float:
    """Return a cell as a number, booleans as 0 or 1; NaN otherwise.

    A text is a number as people and programs write it: digits, a decimal point, an exponent. What else Python takes
    for one is none: ``1_5``, ``infinity``, digits of other scripts.
    """
    if isinstance(cell, str):
        text = cell.strip()
        if _NUMBER.fullmatch(text):
            return float(text)
        return _BOOLEANS.get(text.lower(), math.nan)
    try:
        return float(cell) if isinstance(cell, int | float | Decimal | np.number | np.bool_) else math.nan
    except OverflowError:
        return math.inf


def numbers_of(cells: Cells) -> tuple[NDArray[np.float64], bool]:
    """Return a column as numbers, and whether all are written as whole numbers.

    A cell without a number is not finite.
    """
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64), cells.dtype.kind in "biu"
    try:
        text = "".join(cells)  # type: ignore[arg-type]
        if text.isascii() and "_" not in text and "n" not in text.lower():  # else float() takes more than we do
            return np.array(list(map(float, cells))), text.replace("-", "").isdigit()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    whole = all(_is_whole(cell) for cell in cells)
    return np.array([number_of(cell) for cell in cells], dtype=np.float64), whole


def _is_whole(cell: object) -> bool:
    """Whether a cell is written as a whole number, or as a boolean."""
    if isinstance(cell, str):
        return cell.strip("+- ").isdigit() or cell.strip().lower() in _BOOLEANS
    return isinstance(cell, int)


def why_no_number(cell: object) -> str:
    """Return the fault of a cell without a finite number."""
    if is_empty(cell):
        return "the cell is empty"
    hint = ": decimals have a point" if isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell.strip()) else ""
    return f"'{cell}' is no finite number{hint}"


def to_list(cells: Cells) -> Sequence[Any]:
    """Return a column as Python's values."""
    return cells.tolist() if isinstance(cells, np.ndarray) else cells


def is_empty(cell: object) -> bool:
    """Whether a cell holds nothing."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def client_of(cell: object) -> Any:
    """Return a cell's client: a text made `plain`, a whole number as int."""
    value = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(value, str):
        return plain(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Classes:
    """A reader of labels: classes by name, or by number without names.

    A name that is a number names its class however the number is written: 1, 1.0, and in a column of numbers.

    Args:
        names: of the classes 0..C-1; empty where they have none.
        count: number of classes C; 0 where labels are no classes but numbers; None: as many as there are names, by
            which alone they are called.
    """

    def __init__(self, names: Sequence[str] = (), count: int | None = None) -> None:
        self.names = tuple(names)
        self._count = len(self.names) if count is None else count
        self._by_name = {plain(name): number for number, name in enumerate(names)}
        self._by_name |= {name: number for number, name in enumerate(names)}
        values = [number_of(name) for name in names]
        times = Counter(filter(math.isfinite, values))
        self._by_value = {value: number for number, value in enumerate(values) if times[value] == 1}
        self._by_name_alone = count is None or bool(times)
        self._read: dict[object, float] = {}

    @property
    def allowed(self) -> str:
        """The allowed labels, as a message lists them."""
        if self._by_name_alone:
            return name_list(self.names)
        return f"0 to {self._count - 1}" + (f", or {name_list(self.names)}" if self.names else "")

    def labels_of(self, cells: Cells) -> NDArray[np.float64]:
        """Return a column's labels; NaN where a cell holds none."""
        if not self._count:
            return numbers_of(cells)[0]
        return np.array([self._label(value) for value in to_list(cells)], dtype=np.float64)

    def why_no_label(self, cell: object) -> str:
        """Return the fault of a cell without a label."""
        if is_empty(cell):
            return "the cell is empty"
        if not self._count:
            return f"label '{cell}' is no finite number"
        one_more = not self._by_name_alone and number_of(cell) == self._count
        hint = "; do the table's labels start from 1?" if one_more else ""
        return f"label '{cell}': {self.allowed} are allowed{hint}"

    def _label(self, cell: object) -> float:
        key = cell if isinstance(cell, str) else (type(cell), str(cell))
        if (label := self._read.get(key)) is None:
            label = self._read[key] = self._read_label(cell)
        return label

    def _read_label(self, cell: object) -> float:
        if is_empty(cell):
            return self._by_name.get("", math.nan)
        for name in (str(cell), plain(str(cell))):
            if (label := self._by_name.get(name)) is not None:
                return label
        number = number_of(cell)
        if self._by_name_alone:
            return self._by_value.get(number, math.nan)
        return number if number.is_integer() and 0 <= number < self._count else math.nan
