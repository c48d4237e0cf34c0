r"""FedProx: FedAvg whose clients stay near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks". MLSys 2020.

A client minimises, instead of its loss F_k (equation 2)::

    h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2

with w^t the model that was sent. Algorithm 2 samples clients with probabilities p_k = n_k / n and averages their
models unweighted; the paper's own code samples them uniformly and weights by n_k. This is the second, because it is
what FedAvg does here: mu = 0 is FedAvg, to the bit.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from client.training.sgd import SGD
from fedappeal.core.local_rule import BatchedTerms, LocalProblem, stack_tensors
from fedappeal.core.local_rule import LocalRule as AnyRule
from fedappeal.core.plugins import PluginSettings
from fedappeal.settings.config import NonNegative
from strategies.fedavg import FedAvg
from strategies.rounds.strategy import StrategySettings

if TYPE_CHECKING:
    from torch import Tensor, nn


class FedProx(FedAvg):
    """FedProx (Li et al., MLSys 2020): FedAvg whose clients stay near the global model."""

    name = "fedprox"

    class Settings(StrategySettings):
        """FedProx's settings."""

        proximal_mu: NonNegative = 0.01
        """mu of the proximal term; 0 is FedAvg"""

    class LocalRule(SGD):
        """SGD on ``F_k(w) + mu/2 ||w - w^t||^2``: the norm runs over all trainable parameters at once."""

        name = "prox"

        def __init__(self, settings: PluginSettings | None = None, anchor: "Sequence[Tensor]" = ()) -> None:
            super().__init__(settings)
            self.anchor = list(anchor)
            """Where the pull is to, one tensor a trainable parameter; empty: where the training starts."""

        @property
        def strength(self) -> float:
            """The factor of the pull: mu."""
            return float(self.settings.proximal_mu)

        def train(self, model: "nn.Module", problem: LocalProblem) -> None:
            """Train a model in place, with ``mu (w - w^t)`` added to each gradient."""
            import torch

            from client.training.descent import Tensors, descend, trainable

            mu, anchor = self.strength, self.anchor or [p.detach().clone() for p in trainable(model)]

            def pull(gradients: Tensors, parameters: Tensors) -> Tensors:
                return torch._foreach_add(gradients, torch._foreach_sub(parameters, anchor), alpha=mu)

            descend(model, problem, [pull] if mu else [])

        @classmethod
        def batched_terms(cls, rules: Sequence[AnyRule], start: "Mapping[str, Tensor]") -> BatchedTerms | None:
            """Return the same pull for clients side by side."""
            same = [rule for rule in rules if isinstance(rule, FedProx.LocalRule)]
            if not (mu := same[0].strength):
                return None
            anchors = stack_tensors([rule.anchor for rule in same], start)
            anchor = anchors or {name: p.clone() for name, p in start.items()}

            def pull(name: str, target: "Tensor", before: "Tensor", active: int, sign: float) -> None:
                target.add_(before - anchor[name][:active], alpha=sign * mu)

            return BatchedTerms(pull, needs_before=True)
