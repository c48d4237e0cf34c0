"""Mine: a model for tasks whose examples have one shape and whose labels are classes.

Try it, and run it::

    fedappeal check mine:Mine
    fedappeal simulate --model mine:Mine --task digits --clients 4 --rounds 12
"""

import math

from torch import Tensor, nn


class Mine(nn.Module):
    """Mine: one hidden layer."""

    # It is called with those of these two names that it takes; other parameters need defaults. The weights that torch
    # draws here follow from the run's seed.
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        """Make the layers.

        Args:
            input_shape: of one example: (1, 8, 8) of digits.
            num_classes: number of labels: 10 of digits.
        """
        super().__init__()
        self.hidden = nn.Linear(math.prod(input_shape), 32)
        self.output = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (n, num_classes), of examples (n, *input_shape)."""
        logits: Tensor = self.output(self.hidden(x.flatten(1)).relu())
        return logits
