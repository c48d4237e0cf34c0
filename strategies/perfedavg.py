r"""Per-FedAvg: a model that serves each client after one step on its data.

Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach". NeurIPS 2020. The problem (equation 3) is::

    min_w  1/n sum_i f_i(w - alpha grad f_i(w))

A client descends on its own term (Algorithm 1), with three minibatches a step::

    w <- w - beta (I - alpha Hess f(w, D'')) grad f(w - alpha grad f(w, D), D')

and the server averages the models of the clients of the round, each with the same weight: ``w <- 1/(r n) sum_i w_i``.
beta is the run's learning rate.
"""

from typing import TYPE_CHECKING, Literal

from client.training.sgd import SGD
from fedappeal.core.algorithm import Adapting, PersonalModels
from fedappeal.core.local_rule import LocalProblem
from fedappeal.core.local_rule import LocalRule as AnyRule
from fedappeal.settings.config import CountOrZero, Positive
from strategies.rounds.strategy import Strategy, StrategySettings

if TYPE_CHECKING:
    from torch import nn


class InnerSteps(PersonalModels):
    """A client uses the model after inner steps of its own."""

    def adaptation(self) -> Adapting | None:
        """Return ``adaptation-steps`` steps of alpha, before a second evaluation."""
        if not self.settings.adaptation_steps:
            return None
        return SGD(), {
            "local-steps": self.settings.adaptation_steps,
            "learning-rate": self.settings.maml_learning_rate,
        }


class PerFedAvg(Strategy):
    """Per-FedAvg (Fallah et al., NeurIPS 2020): a start that serves each client after one step of its own."""

    name = "perfedavg"
    averages = True
    personal = InnerSteps

    class Settings(StrategySettings):
        """Per-FedAvg's settings."""

        maml_learning_rate: Positive = 0.01
        """alpha, the inner step"""
        maml_order: Literal["first", "second"] = "second"
        """HF (second order) or FO (first)"""
        adaptation_steps: CountOrZero = 1
        """inner steps before the second evaluation; 0: none"""

    settings: Settings

    class LocalRule(AnyRule):
        """Descent on the loss after one step of the client's own."""

        name = "maml"
        batched = stacks = True
        knows_momentum = False
        knows_weight_decay = False

        def draws(self) -> int:
            """Return the minibatches of a step: D, D' and D'' for the second order."""
            return 3 if self.settings.maml_order == "second" else 2

        def train(self, model: "nn.Module", problem: LocalProblem) -> None:
            """Train a model in place.

            The minibatches of a step are rows D, D' and, for the second order, D'' of ``problem.batches``. The first
            order (FO) leaves the Hessian out. The second order takes the product of Hessian and vector exactly, by
            differentiating the gradient, where the paper's HF takes a difference of two gradients.
            """
            import torch

            from client.training.descent import gradients_of, trainable

            alpha, parameters, draws = self.settings.maml_learning_rate, trainable(model), self.draws()

            minibatches = problem.minibatches()
            for step in zip(*[minibatches] * draws, strict=True):
                start = [p.detach().clone() for p in parameters]
                inner = problem.gradient_of(model, step[0])[0]
                with torch.no_grad():
                    torch._foreach_add_(parameters, inner, alpha=-alpha)
                outer = problem.gradient_of(model, step[1])[0]
                with torch.no_grad():
                    torch._foreach_copy_(parameters, start)
                if draws == 3:
                    bending = gradients_of(problem.loss_of(model, step[2]), parameters, differentiable=True)[0]
                    slopes = [(s, o) for s, o in zip(bending, outer, strict=True) if s.requires_grad]
                    of, along = zip(*slopes, strict=True)
                    bent = torch.autograd.grad(of, parameters, along, materialize_grads=True)
                    # Not in place: autograd may return one tensor as the gradient of two parameters.
                    outer = list(torch._foreach_add(outer, bent, alpha=-alpha))
                with torch.no_grad():
                    torch._foreach_add_(parameters, outer, alpha=-problem.settings.learning_rate)
