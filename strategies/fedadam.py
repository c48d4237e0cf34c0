r"""FedAdam: the server takes a step of Adam along the clients' mean update.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: "Adaptive Federated Optimization". ICLR 2021,
Algorithm 2. With the clients' mean update over those that joined, weighted by examples where Algorithm 2 has 1/|S|::

    D <- sum_k n_k (w_k - w) / sum_k n_k
    m <- beta1 m + (1 - beta1) D            starts at 0
    v <- beta2 v + (1 - beta2) D^2          starts at tau^2
    w <- w + eta m / (sqrt(v) + tau)

The authors' programs (google-research/federated) hand the mean update to Keras' Adam, and Flower does as much: v
starts at 0, and eta is multiplied by ``sqrt(1 - beta2^t) / (1 - beta1^t)`` in step t (Kingma and Ba, ICLR 2015). That
is ``bias-correction``. A round without a joiner is no step.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedappeal.protocol.packing import array_record, view
from fedappeal.settings.config import Positive
from strategies.fedavg import FedAvg
from strategies.rounds.round import Model, Round
from strategies.rounds.strategy import StrategySettings
from strategies.rounds.sums.weighted_sum import finite

_FIRST, _SECOND, _STEPS = "first", "second", "adam"
Decay = Annotated[float, Field(ge=0, lt=1)]
Moments = dict[str, NDArray[Any]]
"""A mean of updates, or of their squares, by array."""


class FedAdam(FedAvg):
    """FedAdam (Reddi et al., ICLR 2021): a step of Adam along the clients' mean update."""

    name = "fedadam"
    refuses_batch_norm = True

    class Settings(StrategySettings):
        """FedAdam's settings."""

        server_lr: Positive = 0.01
        """eta, the server's learning rate"""
        beta1: Decay = 0.9
        """decay of the mean of updates"""
        beta2: Decay = 0.99
        """decay of the mean of their squares"""
        tau: Positive = 1e-3
        """adaptivity: an update far below it makes a small step"""
        bias_correction: bool = False
        """the means start at 0 and are corrected for it"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._first: Moments = {}
        self._second: Moments = {}
        self._steps = 0

    def update(self, round: Round) -> Model:
        """Return the model after one step of Adam; arrays of whole numbers are averaged."""
        settings, mean, steps = self.settings, super().update(round), self._steps + 1
        eta, start, beta1, beta2 = settings.server_lr, settings.tau**2, settings.beta1, settings.beta2
        if settings.bias_correction:
            eta, start = eta * (1 - beta2**steps) ** 0.5 / (1 - beta1**steps), 0.0
        first, second, model = Moments(), Moments(), Moments()
        for name, array in round.model.items():
            w: NDArray[Any] = view(array)
            average: NDArray[Any] = view(mean[name])
            if not np.issubdtype(w.dtype, np.floating):
                model[name] = average
                continue
            update = average - w
            m = beta1 * self._first.get(name, np.zeros_like(update)) + (1 - beta1) * update
            v = beta2 * self._second.get(name, np.full_like(update, start)) + (1 - beta2) * update**2
            with np.errstate(over="ignore", invalid="ignore"):
                model[name] = np.asarray(w + eta * m / (np.sqrt(v) + settings.tau), w.dtype)
            first[name], second[name] = np.asarray(m, w.dtype), np.asarray(v, w.dtype)
        if finite(new := array_record(model)):  # else the model stays as it is, and so do the moments
            self._first, self._second, self._steps = first, second, steps
        return new

    def carried(self) -> dict[str, Any]:
        """Return both moments, and the number of steps."""
        return {_FIRST: self._first, _SECOND: self._second, _STEPS: {"steps": self._steps}}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up the moments and the number of steps."""
        self._first, self._second = dict(carried.get(_FIRST, {})), dict(carried.get(_SECOND, {}))
        self._steps = int(carried[_STEPS]["steps"])
