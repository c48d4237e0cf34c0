"""Why a client's own data do not fit a run, as the server learns it."""

from enum import StrEnum


class DataProblem(StrEnum):
    """What is wrong with a client's own data: a category, nothing of the data."""

    UNREADABLE = "unreadable"
    COLUMNS = "columns"
    SHAPE = "shape"
    VALUES = "values"
    LABELS = "labels"
    TOO_FEW = "too-few"
    NOT_TAKEN = "not-taken"

    @property
    def text(self) -> str:
        """The problem as a clause: ``data is refused: labels out of range``."""
        return f"data is refused: {_TEXTS[self]}"


_TEXTS = {
    DataProblem.UNREADABLE: "it cannot be read",
    DataProblem.COLUMNS: "columns missing or not named",
    DataProblem.SHAPE: "shapes or lengths do not fit",
    DataProblem.VALUES: "values that are not allowed",
    DataProblem.LABELS: "labels out of range",
    DataProblem.TOO_FEW: "too few examples",
    DataProblem.NOT_TAKEN: "the task takes no data of a client's own",
}
