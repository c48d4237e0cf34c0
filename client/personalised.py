r"""Local rules whose global model is a start from which each client makes a model of its own.

``maml``: Per-FedAvg. Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach". NeurIPS 2020, Algorithm 1. A client descends on the loss after one step of
its own, ``F(w) = f(w - alpha grad f(w))``, with three minibatches a step::

    w <- w - beta (I - alpha Hess f(w, D'')) grad f(w - alpha grad f(w, D), D')

``moreau``: pFedMe. T. Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes". NeurIPS 2020,
Algorithm 1. A client descends on its Moreau envelope, ``F(w) = min_theta f(theta) + lambda/2 |theta - w|^2``, whose
gradient is ``lambda (w - theta)`` at the minimiser theta, its personalised model::

    theta <- theta - p (grad f(theta, D) + lambda (theta - w))      K times, on one minibatch
    w     <- w - eta lambda (w - theta)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.work import LocalWork, LossFunction
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError


def maml(
    model: nn.Module,
    loss: LossFunction,
    x: Tensor,
    y: Tensor,
    batches: NDArray[np.int64],
    work: LocalWork,
    correction: Sequence[Tensor] = (),
) -> None:
    """Per-FedAvg's local update: beta is ``learning_rate``, alpha ``maml_learning_rate``.

    The minibatches of a step are rows D, D' and, for the second order, D'' of ``batches``. The first order (FO)
    leaves the Hessian out. The second order takes the product of Hessian and vector exactly, by differentiating the
    gradient, where the paper's HF takes a difference of two gradients.

    Raises:
        ConfigError: for momentum or weight decay, which the update does not have.
    """
    _only_plain_steps("maml", work)
    parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]

    def gradient(batch: Tensor, differentiable: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(model(x[batch]), y[batch]), parameters, create_graph=differentiable)

    draws = minibatches("maml", work)
    for step in torch.from_numpy(batches).to(x.device).reshape(-1, draws, batches.shape[1]):
        start = [p.detach().clone() for p in parameters]
        inner = gradient(step[0])
        with torch.no_grad():
            torch._foreach_add_(parameters, inner, alpha=-work.maml_learning_rate)
        outer = list(gradient(step[1]))
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)
        if work.maml_order == "second":
            bent = torch.autograd.grad(
                gradient(step[2], differentiable=True), parameters, outer, materialize_grads=True
            )
            # Not in place: autograd may return one tensor as the gradient of two parameters.
            outer = list(torch._foreach_add(outer, bent, alpha=-work.maml_learning_rate))
        with torch.no_grad():
            torch._foreach_add_(parameters, outer, alpha=-work.learning_rate)


def moreau(
    model: nn.Module,
    loss: LossFunction,
    x: Tensor,
    y: Tensor,
    batches: NDArray[np.int64],
    work: LocalWork,
    correction: Sequence[Tensor] = (),
) -> None:
    """Take pFedMe's local rounds: eta is ``learning_rate``, p ``personal_learning_rate``, K ``moreau_steps``.

    Theta starts at the model that was sent, and in each further local round where the last one left it, as in the
    authors' program (github.com/CharlieDinh/pFedMe); the paper leaves its start open. What is sent back is w.

    Raises:
        ConfigError: for momentum or weight decay, which the update does not have.
    """
    _only_plain_steps("moreau", work)
    theta: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    local = [p.detach().clone() for p in theta]
    for batch in torch.from_numpy(batches).to(x.device):
        for _ in range(work.moreau_steps):
            gradients = torch.autograd.grad(loss(model(x[batch]), y[batch]), theta)
            with torch.no_grad():
                pull = torch._foreach_sub(theta, local)
                torch._foreach_mul_(pull, work.moreau_lambda)
                torch._foreach_add_(pull, gradients)
                torch._foreach_add_(theta, pull, alpha=-work.personal_learning_rate)
        with torch.no_grad():
            torch._foreach_lerp_(local, theta, work.learning_rate * work.moreau_lambda)
    with torch.no_grad():
        torch._foreach_copy_(theta, local)


def minibatches(rule: str, work: LocalWork) -> int:
    """Number of minibatches that one local step takes: D, D' and D'' for the second order of ``maml``."""
    if rule == "maml":
        return 3 if work.maml_order == "second" else 2
    return 1


def _only_plain_steps(rule: str, work: LocalWork) -> None:
    for key, value in (("momentum", work.momentum), ("weight-decay", work.weight_decay)):
        if value:
            raise ConfigError(f"{key} = {value:g} is not allowed with local-rule = '{rule}': 0")


class Adaptation(NamedTuple):
    """Local training before a model is judged.

    Attributes:
        rule: the local rule.
        work: its settings.
        purpose: what its minibatches and noise are drawn for.
    """

    rule: str
    work: LocalWork
    purpose: str


def adaptation(told: Mapping[str, object], own: Mapping[str, object]) -> Adaptation | None:
    """Return how a client makes its own model from the global one, as an EVALUATE asks; None: it does not ask.

    Per-FedAvg: ``adaptation-steps`` steps of alpha. pFedMe (``local-rule = moreau``): as many steps of its inner
    problem, which are FedProx's steps with mu = lambda.

    Args:
        told: the config of the message.
        own: the run's settings.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    if not (steps := told.get(keys.ADAPTATION_STEPS, 0)):
        return None
    asked = LocalWork.of({"local-steps": steps}, told, own)
    plain = {"momentum": 0.0, "weight_decay": 0.0}
    if told.get(keys.LOCAL_RULE) == "moreau":
        prox = {"learning_rate": asked.personal_learning_rate, "proximal_mu": asked.moreau_lambda}
        return Adaptation("prox", asked.model_copy(update={**plain, **prox}), "adaptation")
    return Adaptation(
        "sgd", asked.model_copy(update={**plain, "learning_rate": asked.maml_learning_rate}), "adaptation"
    )
