r"""pFedMe: a global model near which each client finds a model of its own.

T. Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes". NeurIPS 2020. The problem
(equations 2 and 3) is::

    min_w  1/N sum_i F_i(w),   F_i(w) = min_theta f_i(theta) + lambda/2 |theta - w|^2

A client descends on its envelope, whose gradient is ``lambda (w - theta)`` at the minimiser theta, its personalised
model (Algorithm 1; p is the inner learning rate)::

    theta <- theta - p (grad f(theta, D) + lambda (theta - w))      K times, on one minibatch
    w     <- w - eta lambda (w - theta)

and the server moves towards the average of the models w_i of the clients of the round, each with the same weight
(Algorithm 1, last line): ``w <- (1 - beta) w + beta * 1/S sum_i w_i``. eta is the run's learning rate.
"""

from typing import TYPE_CHECKING, Any

from fedappeal.core.algorithm import Adapting, PersonalModels
from fedappeal.core.local_rule import LocalProblem
from fedappeal.core.local_rule import LocalRule as AnyRule
from fedappeal.settings.config import ConfigError, Count, Positive
from strategies.fedprox import FedProx
from strategies.rounds.round import Model, Round
from strategies.rounds.strategy import Strategy, StrategySettings

if TYPE_CHECKING:
    from torch import nn


class MoreauModels(PersonalModels):
    """A client uses the minimiser of its envelope."""

    def adaptation(self) -> Adapting:
        """Return K steps of the inner problem: FedProx's, with mu = lambda."""
        settings = self.settings
        rule = FedProx.LocalRule(FedProx.Settings(proximal_mu=settings.moreau_lambda))
        return rule, {"local-steps": settings.moreau_steps, "learning-rate": settings.personal_learning_rate}


class PFedMe(Strategy):
    """pFedMe (T. Dinh et al., NeurIPS 2020): a model near which each client finds one of its own."""

    name = "pfedme"
    averages = True
    personal = MoreauModels

    class Settings(StrategySettings):
        """pFedMe's settings."""

        moreau_lambda: Positive = 15.0
        """lambda, how strongly a client's own model is held near"""
        moreau_steps: Count = 5
        """K, inner steps on one minibatch"""
        personal_learning_rate: Positive = 0.05
        """p, learning rate of the inner steps"""
        server_mixing: Positive = 1.0
        """beta; 1 is the plain average"""

    settings: Settings

    class LocalRule(AnyRule):
        """Descent on the client's Moreau envelope.

        Theta starts at the model that was sent, and in each further local round where the last one left it, as in the
        authors' program (github.com/CharlieDinh/pFedMe); the paper leaves its start open. What is sent back is w.
        """

        name = "moreau"
        batched = stacks = True
        knows_momentum = False
        knows_weight_decay = False

        def gradients(self, steps: int) -> int:
            """Return K for each local step."""
            return steps * int(self.settings.moreau_steps)

        def train(self, model: "nn.Module", problem: LocalProblem) -> None:
            """Train a model in place."""
            import torch

            from client.training.descent import trainable

            settings, theta = self.settings, trainable(model)
            local = [p.detach().clone() for p in theta]
            for batch in problem.minibatches():
                for _ in range(settings.moreau_steps):
                    problem.proximal_step(
                        model, batch, local, settings.moreau_lambda, settings.personal_learning_rate
                    )
                with torch.no_grad():
                    torch._foreach_lerp_(local, theta, problem.settings.learning_rate * settings.moreau_lambda)
            with torch.no_grad():
                torch._foreach_copy_(theta, local)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        rate, strength = self.settings.personal_learning_rate, self.settings.moreau_lambda
        # At 2 and above the inner steps move away from their minimum, whatever convex loss they meet.
        if rate * strength >= 2:
            raise ConfigError(
                f"pfedme.personal-learning-rate = {rate:g} is not allowed with pfedme.moreau-lambda = {strength:g}: "
                f"less than {2 / strength:g} (2 / lambda)"
            )

    def update(self, round: Round) -> Model:
        """Return ``(1 - beta) w + beta * average``."""
        mixing = self.settings.server_mixing
        return round.sum.combine(keep=1.0 - mixing, scale=mixing / round.sum.count)
