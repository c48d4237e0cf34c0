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


Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamW(LocalRule):
    """AdamW (Loshchilov and Hutter, ICLR 2019) with decoupled weight decay; its means start anew each round.

    Of gradients as small as ``eps``, rounding decides the direction: clients side by side end further from what they
    are one by one than by SGD, unless ``eps`` is larger.
    """

    name = "adamw"
    knows_momentum = False
    """beta1 is its own."""
    batched = stacks = True

    class Settings(PluginSettings):
        """AdamW's settings."""

        beta1: Decay = 0.9
        """decay of the mean of gradients"""
        beta2: Decay = 0.999
        """decay of the mean of their squares"""
        eps: Positive = 1e-8
        """added to the root of that mean"""

    settings: Settings

    def train(self, model: "nn.Module", problem: LocalProblem) -> None:
        """Train a model in place.

        As in ``torch.optim``, a parameter's steps are those in which it has a gradient.
        """
        import torch

        from client.training.descent import trainable

        settings, training, parameters = self.settings, problem.settings, trainable(model)
        means, squares, changes = ([torch.zeros_like(p) for p in parameters] for _ in range(3))
        steps = [0] * len(parameters)
        for batch in problem.minibatches():
            gradients, unused = problem.gradient_of(model, batch)
            used = [place for place in range(len(parameters)) if place not in unused]
            all_tensors = gradients, parameters, means, squares, changes
            g, p, first, second, change = ([of[i] for i in used] for of in all_tensors)
            for place in used:
                steps[place] += 1
            with torch.no_grad():
                torch._foreach_lerp_(first, g, 1 - settings.beta1)
                torch._foreach_mul_(second, settings.beta2)
                torch._foreach_addcmul_(second, g, g, value=1 - settings.beta2)
                # In kept memory: of many clients, new tensors cost as much as the arithmetic.
                for root, square in zip(change, second, strict=True):
                    torch.sqrt(square, out=root)
                torch._foreach_div_(change, [math.sqrt(1 - settings.beta2 ** steps[place]) for place in used])
                torch._foreach_add_(change, settings.eps)
                torch._foreach_mul_(change, [1 - settings.beta1 ** steps[place] for place in used])
                for scale, mean in zip(change, first, strict=True):
                    torch.div(mean, scale, out=scale)
                if training.weight_decay:
                    torch._foreach_add_(change, p, alpha=training.weight_decay)
                torch._foreach_add_(p, change, alpha=-training.learning_rate)
