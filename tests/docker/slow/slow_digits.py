"""Digits whose training takes its time whatever the machine: a fault can come in the midst of it."""

import time

import torch
from torch import Tensor

from fedappeal.tasks.datasets.digits import Digits

STEP = 0.1
"""Seconds that a step of training takes at least."""


class SlowDigits(Digits):
    """Sleeps where a gradient is asked for; evaluation is as fast as ever."""

    def loss(self, logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy, after a while."""
        if torch.is_grad_enabled():
            time.sleep(STEP)
        return super().loss(logits, y, reduction)
