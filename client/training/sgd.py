"""SGD, the local rule of strategies that leave it open, and AdamW."""

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedappeal.core.local_rule import LocalProblem, LocalRule
from fedappeal.core.plugins import PluginSettings
from fedappeal.settings.config import Positive

if TYPE_CHECKING:
    from torch import nn


class SGD(LocalRule):
    """Minibatch SGD, ``w <- w - eta_l g(w, xi)``, with momentum and weight decay as in ``torch.optim.SGD``."""

    name = "sgd"
    batched = True

    def train(self, model: "nn.Module", problem: LocalProblem) -> None:
        """Train a model in place."""
        from client.training.descent import descend

        descend(model, problem)


if TYPE_CHECKING:
    from torch import nn

    from client.training.descent import GradientTerm, Tensors

Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamW(LocalRule):
    """AdamW (Loshchilov and Hutter, ICLR 2019) with decoupled weight decay; its means start anew each round."""

    name = "adamw"
    knows_momentum = False
    """beta1 is its own."""
    batched = False
    """What a rule adds in a batch is added to the gradient; this one replaces it."""

    class Settings(PluginSettings):
        """AdamW's settings."""

        beta1: Decay = Field(0.9, description="decay of the mean of gradients")
        beta2: Decay = Field(0.999, description="decay of the mean of their squares")
        eps: Positive = Field(1e-8, description="added to the root of that mean")

    settings: Settings

    def train(self, model: "nn.Module", problem: LocalProblem) -> None:
        """Train a model in place."""
        from client.training.descent import descend

        # Descent adds weight decay after a term: behind this one, that is the decoupled form.
        descend(model, problem, [self._direction()])

    def _direction(self) -> "GradientTerm":
        """Return the term that replaces each gradient by AdamW's direction."""
        import torch

        settings = self.settings
        first: Tensors = ()
        second: Tensors = ()
        step = 0

        def direction(gradients: "Tensors", parameters: "Tensors") -> "Tensors":
            nonlocal first, second, step
            if not step:
                first = [torch.zeros_like(g) for g in gradients]
                second = [torch.zeros_like(g) for g in gradients]
            step += 1
            torch._foreach_lerp_(first, gradients, 1 - settings.beta1)
            torch._foreach_mul_(second, settings.beta2)
            torch._foreach_addcmul_(second, gradients, gradients, value=1 - settings.beta2)
            scale = torch._foreach_sqrt(second)
            torch._foreach_div_(scale, math.sqrt(1 - settings.beta2**step))
            torch._foreach_add_(scale, settings.eps)
            torch._foreach_mul_(scale, 1 - settings.beta1**step)
            return torch._foreach_div(first, scale)

        return direction
