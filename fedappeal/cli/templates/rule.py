"""Mine: local steps along the gradient, none longer than a bound.

Try it, and run it::

    fedappeal check mine:Mine
    fedappeal simulate --strategy fedavg --local-rule mine:Mine --set mine.longest=2 --clients 4 --rounds 12
"""

from typing import Any

from pydantic import Field

from client.training.descent import trainable
from fedappeal.core.local_rule import LocalProblem, LocalRule
from fedappeal.core.plugins import PluginSettings
from fedappeal.settings.config import Positive


class Mine(LocalRule):
    """Mine: SGD with clipped gradients."""

    knows_momentum = False  # runs that set them are refused
    knows_weight_decay = False

    # Each setting has a default and a description; `fedappeal list mine:Mine` shows them.
    class Settings(PluginSettings):
        """Settings of Mine."""

        longest: Positive = Field(1.0, description="largest norm of a gradient")

    def train(self, model: Any, problem: LocalProblem) -> None:
        """Train the model in place; it holds the global model, in training mode."""
        import torch  # here: the server and the command line read the class without torch

        parameters = trainable(model)
        for batch in problem.minibatches():  # as many as the run says, of the run's size
            # Zeros where the loss does not depend on a parameter: it stays as it is.
            gradients, _ = problem.gradient_of(model, batch)
            norm = torch.stack([(g * g).sum() for g in gradients]).sum().sqrt()
            step = problem.settings.learning_rate * (self.settings.longest / norm).clamp_max(1.0)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= step * gradient
