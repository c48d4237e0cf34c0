"""Local rules that descend on the loss: SGD, with FedProx's term or SCAFFOLD's correction added to each gradient."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.work import LocalWork, LossFunction


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
    parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    velocity: list[Tensor] = []
    for batch in torch.from_numpy(batches).to(x.device):
        gradients = list(torch.autograd.grad(loss(model(x[batch]), y[batch]), parameters))
        with torch.no_grad():
            if work.weight_decay:
                torch._foreach_add_(gradients, parameters, alpha=work.weight_decay)
            if work.momentum:
                if velocity:
                    torch._foreach_mul_(velocity, work.momentum)
                    torch._foreach_add_(velocity, gradients)
                else:
                    velocity = gradients
                gradients = velocity
            torch._foreach_add_(parameters, gradients, alpha=-work.learning_rate)
