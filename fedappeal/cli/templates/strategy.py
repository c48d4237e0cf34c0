"""Mine: the server keeps momentum, layer by layer.

    d <- mean of the clients' models - w    (FedAvg's, by examples)
    m <- momentum m + d                     starts at 0
    w <- w + m

Try it, and run it::

    fedappeal check mine:Mine
    fedappeal simulate --strategy mine:Mine --set mine.momentum=0.5 --clients 4 --rounds 12
"""

from typing import Any

from pydantic import Field

from fedappeal.settings.config import Share
from strategies.fedavg import FedAvg
from strategies.rounds.round import Model, Round
from strategies.rounds.strategy import StrategySettings


class Mine(FedAvg):
    """Mine: FedAvg with momentum on the server."""

    # Each setting has a default and a description; `fedappeal list mine:Mine` shows them.
    class Settings(StrategySettings):
        """Settings of Mine."""

        momentum: Share = Field(0.5, description="share of the last step that is added to the next")

    def __init__(self, **settings: Any) -> None:
        """Take the settings, Mine's and those of every strategy."""
        super().__init__(**settings)
        self.m: dict[str, Any] = {}

    # Also yours to decide: weight(reply), how much a client counts (here FedAvg's number of examples); finish(round),
    # also where no client joined; report(measured), what a client tells besides its model.
    def update(self, round: Round) -> Model:
        """Return the next model, of a round that at least one client joined."""
        mean = round.layers(super().update(round))  # NumPy arrays by the layer's name, read-only
        for name, w in round.layers().items():  # of the model that was sent
            self.m[name] = self.settings.momentum * self.m.get(name, 0.0) + (mean[name] - w)
        # Shapes and dtypes stay as they were. A forgotten return is an error.
        return round.model_of({name: (w + self.m[name]).astype(w.dtype) for name, w in round.layers().items()})

    # What is remembered from round to round goes into the checkpoint, and comes back when a run is resumed.
    def carried(self) -> dict[str, Any]:
        """Return what goes into the checkpoint."""
        return {"m": self.m}

    def take_up(self, carried: Any) -> None:
        """Restore what `carried` returned."""
        self.m = dict(carried.get("m", {}))
