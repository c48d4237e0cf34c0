"""Local rules that descend on the loss: SGD, with FedProx's term or SCAFFOLD's correction added to each gradient.

The three are one loop: what makes the rule is what it adds to the minibatch gradient, before weight decay and
momentum.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.work import LocalWork, LossFunction

Tensors = tuple[Tensor, ...] | list[Tensor]
"""One tensor a trainable parameter."""

GradientTerm = Callable[[Tensors, Tensors], Tensors]
"""Returns the gradients with something added; called with (gradients, parameters)."""


def sgd(
    model: nn.Module,
    loss: LossFunction,
    x: Tensor,
    y: Tensor,
    batches: NDArray[np.int64],
    work: LocalWork,
    correction: Sequence[Tensor] = (),
) -> None:
    """Minibatch SGD, MaxFL equation 5 (and FedAvg's local update): ``w <- w - eta_l g(w, xi)``.

    Momentum and weight decay as in ``torch.optim.SGD``, which is not used because its first use in a process
    imports the compiler stack: seconds of CPU on every device.
    """
    _descend(model, loss, x, y, batches, work, _corrections(correction))


def prox(
    model: nn.Module,
    loss: LossFunction,
    x: Tensor,
    y: Tensor,
    batches: NDArray[np.int64],
    work: LocalWork,
    correction: Sequence[Tensor] = (),
) -> None:
    """FedProx's local rule (Li et al., MLSys 2020, equation 2): SGD on ``F_k(w) + mu/2 ||w - w^t||^2``.

    The norm runs over all trainable parameters at once, so the term's gradient is ``mu (w - w^t)``, with w^t the
    model that was sent. mu = 0 is `sgd`, to the bit.
    """
    terms = _corrections(correction)
    if work.proximal_mu:
        terms.append(_pull(_trainable(model), work.proximal_mu))
    _descend(model, loss, x, y, batches, work, terms)


def scaffold(
    model: nn.Module,
    loss: LossFunction,
    x: Tensor,
    y: Tensor,
    batches: NDArray[np.int64],
    work: LocalWork,
    correction: Sequence[Tensor] = (),
) -> None:
    """SCAFFOLD's local rule (Karimireddy et al., ICML 2020, equation 3): ``y_i <- y_i - eta_l (g_i(y_i) - c_i + c)``.

    Args:
        model: holds x, the model that was sent; y_i afterwards.
        loss: mean loss of a minibatch.
        x: inputs.
        y: labels.
        batches: indices of the minibatches, shape ``(steps, batch size)``.
        work: settings.
        correction: ``c - c_i``, one tensor a trainable parameter.

    Raises:
        ValueError: where the correction is not one tensor a trainable parameter.
    """
    if len(correction) != (expected := len(_trainable(model))):
        raise ValueError(f"SCAFFOLD's correction has {len(correction)} tensors, the model {expected} parameters")
    _descend(model, loss, x, y, batches, work, _corrections(correction))


def _trainable(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _corrections(correction: Sequence[Tensor]) -> list[GradientTerm]:
    if not correction:
        return []
    constant = list(correction)
    return [lambda gradients, parameters: torch._foreach_add(gradients, constant)]


def _pull(parameters: list[Tensor], mu: float) -> GradientTerm:
    """Return FedProx's term, which pulls towards where the parameters are now."""
    start = [p.detach().clone() for p in parameters]
    return lambda gradients, parameters: torch._foreach_add(
        gradients, torch._foreach_sub(parameters, start), alpha=mu
    )


def _descend(
    model: nn.Module,
    loss: LossFunction,
    x: Tensor,
    y: Tensor,
    batches: NDArray[np.int64],
    work: LocalWork,
    terms: Sequence[GradientTerm],
) -> None:
    parameters = _trainable(model)
    velocity: Tensors | None = None
    for batch in torch.from_numpy(batches).to(x.device):
        gradients: Tensors = torch.autograd.grad(loss(model(x[batch]), y[batch]), parameters)
        with torch.no_grad():
            # Nothing is added in place: autograd hands out one tensor twice where two parameters are only added up.
            for term in terms:
                gradients = term(gradients, parameters)
            if work.weight_decay:
                gradients = torch._foreach_add(gradients, parameters, alpha=work.weight_decay)
            if work.momentum:
                if velocity is not None:
                    gradients = torch._foreach_add(torch._foreach_mul(velocity, work.momentum), gradients)
                velocity = gradients
            torch._foreach_add_(parameters, gradients, alpha=-work.learning_rate)
