"""SGD: the local rule of strategies that leave it open."""

from typing import TYPE_CHECKING

from fedappeal.core.local_rule import LocalProblem, LocalRule

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
