"""The digits, learned by a model with a normalisation by batches and a head."""

from torch import nn

from fedappeal.tasks.datasets.digits import Digits
from fedappeal.tasks.models import seeded


class Normed(Digits):
    """Digits with a body, a BatchNorm and a head."""

    name = "normed"

    def initial_model(self, seed: int) -> nn.Module:
        with seeded(seed):
            body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
            return nn.Sequential(body, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
