"""What every local rule shares: its settings and its signature."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fedappeal.protocol.config import Count, CountOrZero, NonNegative, Positive, Settings

LossFunction = Callable[[Tensor, Tensor], Tensor]


class LocalWork(Settings):
    """How much a client trains, with which step, and what its local rule needs to know besides."""

    learning_rate: Positive
    batch_size: Count
    local_steps: CountOrZero = 0
    local_epochs: CountOrZero = 0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    proximal_mu: NonNegative = 0.0
    maml_learning_rate: Positive = 0.01
    maml_order: Literal["first", "second"] = "second"
    moreau_lambda: Positive = 15.0
    moreau_steps: Count = 5
    personal_learning_rate: Positive = 0.05
    gradient_batch: CountOrZero = 0
    gradient_steps: Count = 1

    @classmethod
    def of(cls, *sources: Mapping[str, object]) -> "LocalWork":
        """Take the settings from the first source that has each of them.

        Raises:
            ConfigError: where one is missing or not allowed.
        """
        merged: dict[str, object] = {}
        names = cls.keys()
        for source in reversed(sources):
            merged |= {key: source[key] for key in names if key in source}
        return cls.parse(merged)

    def steps(self, num_examples: int) -> int:
        """Number of local steps: the setting, or as many as the epochs hold."""
        if self.local_steps:
            return self.local_steps
        return self.local_epochs * -(-num_examples // self.batch_size)


class LocalRule(Protocol):
    """Trains a model in place.

    ``batches`` are indices into ``x`` and ``y``, shape ``(draws, batch size)``, see `draws_a_step`; the model holds
    the global model and is in training mode. ``correction`` is added to every gradient, one tensor a trainable
    parameter (SCAFFOLD); none: nothing is.
    """

    def __call__(
        self,
        model: nn.Module,
        loss: LossFunction,
        x: Tensor,
        y: Tensor,
        batches: NDArray[np.int64],
        work: LocalWork,
        correction: Sequence[Tensor] = (),
    ) -> None:
        """Train ``model`` in place."""
