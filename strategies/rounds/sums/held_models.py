"""The median or the trimmed mean of a round's models, coordinate by coordinate: ``aggregation``.

Yin, Chen, Kannan, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates". ICML 2018,
definitions 1 and 2. Each model counts once, whatever its weight. All models of a round are held until its end: memory
O(m d), where the weighted mean takes O(d).
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.elsewhere import Elsewhere
from strategies.rounds.sums.weighted_sum import CheckedModel, WeightedSum

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

_BLOCK = 1 << 16


def trimmed_mean(values: NDArray[np.generic], trim: int) -> NDArray[np.float64]:
    """Return the mean over the first axis without the ``trim`` smallest and largest values of each column.

    Args:
        values: shape ``(m, n)``.
        trim: less than ``m / 2``; ``(m - 1) // 2`` gives the median.
    """
    ordered = np.sort(values, axis=0)[trim : len(values) - trim]
    return np.asarray(ordered.mean(axis=0, dtype=np.float64))


class HeldModels(WeightedSum):
    """A sum of models that is m times their median or trimmed mean.

    Attributes:
        weight: number of models, as ``count``: each counts once.
    """

    def __init__(self, like: "ArrayRecord", trim_share: float) -> None:
        """Begin without models.

        Args:
            like: the model that was sent.
            trim_share: of the values of a coordinate that are left out at either end; 0.5: all but the median.
        """
        super().__init__(like)
        self._trim_share = trim_share
        self._models: list[dict[str, NDArray[np.generic]]] = []

    def trim(self) -> int:
        """Return how many values of a coordinate are left out at either end: of three or more at least one."""
        return min((self.count - 1) // 2, max(1, int(self._trim_share * self.count + 1e-9)))

    def add_checked(self, values: CheckedModel, weight: float) -> None:
        """Hold one model that `check` returned.

        Raises:
            TypeError: a model that stayed where it was trained.
        """
        if isinstance(values, Elsewhere):
            raise TypeError("a median needs the models themselves")
        self._models.append(values)
        self.weight += 1.0
        self.count += 1

    def combine(self, keep: float, scale: float) -> "ArrayRecord":
        """Return ``keep * model_sent + scale * m * statistic`` in the sent layout, and let go of the models."""
        for name, like in self._like.items():
            total = self._sums[name] = np.zeros(like.size, dtype=np.float64)
            for start in range(0, like.size if self._models else 0, _BLOCK):
                part = np.stack([model[name][start : start + _BLOCK] for model in self._models])
                sent = like.reshape(-1)[start : start + _BLOCK].astype(np.float64)
                total[start : start + _BLOCK] = self.count * (trimmed_mean(part, self.trim()) - sent)
        self._models.clear()
        return super().combine(keep, scale)
