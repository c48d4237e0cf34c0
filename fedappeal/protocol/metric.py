"""A task's metric: the name of a number that rates a model, and its direction."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError

_NAME = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OF_REPLIES = frozenset({keys.LOSS, keys.TRAIN_LOSS, keys.NUM_EXAMPLES, keys.DECISION, *keys.APPEALS})
_OF_CLIENTS = frozenset({"client", "client-ids", "requirement"})
"""Columns of a run's clients, beside the round and what they reply."""
_OF_THE_HISTORY = (
    "round asked joined sat-out left absent failed surplus mandatory bounded gm-appeal gm-appeal-train "
    "gm-appeal-held-out adapted-loss central-loss rolled-back rolled-back-to learning-rate not-finite "
    "compared-decisions flipped-decisions virtual-seconds evaluated expected bytes-up bytes-down seconds "
    "failures check"
)


def column(name: str) -> str:
    """Return the column of the history in which the metric of a name stands."""
    return name.replace("-", "_")


def figure_text(value: float | None, share: bool) -> str:
    """Return a figure for a table, shares in per cent; ``-`` for None."""
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if share else f"{value:.3f}"


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is on a client's data.

    Attributes:
        name: its key in messages, such as ``accuracy``; with ``_`` for ``-`` a column of the history.
        higher_is_better: which way is better.
        low: the least value that is possible.
        high: the largest.

    Raises:
        ConfigError: a name that cannot be a key, or is another number's.
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        taken = _OF_REPLIES | _OF_CLIENTS
        if not _NAME.fullmatch(self.name) or self.name in {*taken, *_OF_THE_HISTORY.split()}:
            raise ConfigError(
                f"metric = '{self.name}' is not allowed: small letters, digits and '-', no other column of the "
                f"history (`fedappeal list columns`), and none of {', '.join(sorted(taken))}"
            )
        if not self.low < self.high:
            raise ConfigError(f"metric = '{self.name}' is not allowed: low = {self.low} is not below {self.high}")

    @classmethod
    def of_record(cls, record: object) -> "Metric":
        """Return the metric that `as_record` wrote; of a run that recorded none, accuracy.

        Raises:
            ConfigError: another record.
        """
        if record is None:
            return ACCURACY
        if not isinstance(record, dict) or record.keys() != {"name", "higher-is-better", "bounds"}:
            raise ConfigError(f"metric = {record!r} is not allowed: a name, which way is better, and bounds")
        try:
            low, high = (float(bound) for bound in record["bounds"])
        except (OverflowError, TypeError, ValueError):
            raise ConfigError(f"metric = {record!r} is not allowed: bounds are two numbers") from None
        return cls(str(record["name"]), bool(record["higher-is-better"]), low, high)

    def as_record(self) -> dict[str, object]:
        """Return the metric as a run's folder records it.

        Bounds are texts, because JSON knows no infinity.
        """
        bounds = [str(self.low), str(self.high)]
        return {"name": self.name, "higher-is-better": self.higher_is_better, "bounds": bounds}

    @property
    def column(self) -> str:
        """The metric's column of the history."""
        return column(self.name)

    @property
    def heading(self) -> str:
        """The metric's name in a heading, with a per cent sign for a share."""
        return self.name.replace("-", " ") + (" %" if self.is_share else "")

    @property
    def is_share(self) -> bool:
        """Whether the metric lies in [0, 1], shown in per cent."""
        return (self.low, self.high) == (0.0, 1.0)

    def error(self, value: float) -> float:
        """Return the distance from the best, ``1 - accuracy``; the value where lower is better."""
        if not self.higher_is_better:
            return value
        return (self.high if math.isfinite(self.high) else 0.0) - value

    @property
    def error_bounds(self) -> tuple[float, float]:
        """The least and the largest `error`."""
        least, most = sorted((self.error(self.low), self.error(self.high)))
        return least, most

    def from_error(self, error: float) -> float:
        """Return the value of an error, at most the worst one."""
        worst = min(error, self.error_bounds[1])
        return self.error(worst) if self.higher_is_better else worst

    def reaches(self, value: float, wanted: float) -> bool:
        """Whether a value is as good as one that is wanted; NaN never is."""
        return value >= wanted if self.higher_is_better else value <= wanted

    def worst_first(self, values: Iterable[float]) -> list[float]:
        """Return values in order, the worst first."""
        return sorted(values, reverse=not self.higher_is_better)


ACCURACY = Metric()
"""The share of examples that a model labels rightly."""
