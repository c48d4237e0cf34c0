"""Mine: two clouds of points, told apart; each client's clouds lie elsewhere.

Try it, and run it::

    fedappeal check mine:Mine
    fedappeal simulate --task mine:Mine --set mine.spread=0.5 --clients 4 --rounds 12
"""

import numpy as np
from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import Count, Positive
from fedappeal.tasks.examples import Features, Labels
from fedappeal.tasks.labelled import NaturalTask


class Mine(NaturalTask):
    """Mine: two clouds of points a client."""

    input_shape = (2,)
    num_classes = 2
    default_model = "logistic"  # where a run says --model auto; mlp, cnn or your own are chosen by --model

    # Each setting has a default and a description; `fedappeal list mine:Mine` shows them.
    class Settings(PluginSettings):
        """Settings of Mine."""

        examples: Count = Field(100, description="examples a client")
        spread: Positive = Field(0.5, description="standard deviation of a cloud; the two are 2 apart")

    own: Settings

    def read(self) -> list[tuple[Features, Labels]]:
        """Return each client's inputs, float32 (n, 2), and labels, before the split."""
        return [self.points(k) for k in range(self.settings.clients + self.settings.unseen_clients)]

    def points(self, client: int) -> tuple[Features, Labels]:
        """Return one client's points, which follow from the seed and its number alone."""
        draw = generator(self.settings.resolved_data_seed, "mine", client=str(client))
        labels = np.arange(self.own.examples) % 2
        centres = np.stack([2.0 * labels, np.full(len(labels), 0.3 * client)], axis=1)
        x = centres + draw.normal(0.0, self.own.spread, centres.shape)
        return x.astype(np.float32), labels.astype(np.int64)
