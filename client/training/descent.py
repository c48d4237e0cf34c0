"""Minibatch descent: one loop for all rules that add something to each gradient of SGD."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from fedappeal.core.local_rule import LocalProblem

Tensors = tuple[Tensor, ...] | list[Tensor]
"""One tensor a trainable parameter."""

GradientTerm = Callable[[Tensors, Tensors], Tensors]
"""Returns the gradients with something added; called with (gradients, parameters)."""


def trainable(model: nn.Module) -> list[Tensor]:
    """Return the parameters that are trained, in the model's order."""
    return [p for p in model.parameters() if p.requires_grad]


def gradients_of(
    loss: Tensor, parameters: Sequence[Tensor], differentiable: bool = False
) -> tuple[list[Tensor], list[int]]:
    """Return a loss's gradients, and the places of parameters that it does not depend on, whose are zero.

    ``torch.optim`` leaves such a parameter as it is in that step, whatever momentum, weight decay or term there are.

    Args:
        loss: a scalar.
        parameters: in the model's order.
        differentiable: whether the gradients can be differentiated again.
    """
    gradients = torch.autograd.grad(loss, parameters, create_graph=differentiable, allow_unused=True)
    unused = [place for place, gradient in enumerate(gradients) if gradient is None]
    zeros = {place: torch.zeros_like(parameters[place]) for place in unused}
    return [zeros[place] if g is None else g for place, g in enumerate(gradients)], unused


def descend(model: nn.Module, problem: LocalProblem, terms: Sequence[GradientTerm] = ()) -> None:
    """Take one step of SGD for each minibatch, in place.

    Momentum and weight decay are those of ``torch.optim.SGD``, which is not used because its first use in a process
    imports the compiler stack: seconds of CPU on every device.

    Args:
        model: in training mode.
        problem: the client's data, minibatches and settings.
        terms: what is added to each minibatch gradient, before weight decay and momentum.
    """
    parameters = trainable(model)
    velocity: Tensors | None = None
    training = problem.settings
    for batch in problem.minibatches():
        gradients: Tensors
        gradients, unused = problem.gradient_of(model, batch)
        with torch.no_grad():
            # Nothing is added in place: autograd hands out one tensor twice where two parameters are only added up.
            for term in terms:
                gradients = term(gradients, parameters)
            if training.weight_decay:
                gradients = torch._foreach_add(gradients, parameters, alpha=training.weight_decay)
            before = velocity
            if training.momentum:
                if velocity is not None:
                    gradients = torch._foreach_add(torch._foreach_mul(velocity, training.momentum), gradients)
                velocity = gradients
            if unused:
                gradients = _idle(gradients, unused)
                velocity = velocity and _idle(velocity, unused, before)
            torch._foreach_add_(parameters, gradients, alpha=-training.learning_rate)


def _idle(tensors: Tensors, unused: Collection[int], before: Tensors | None = None) -> Tensors:
    """Return tensors with those of unused parameters as they were before.

    Those are zeros where ``before`` is None.
    """
    return [
        (torch.zeros_like(tensor) if before is None else before[place]) if place in unused else tensor
        for place, tensor in enumerate(tensors)
    ]
