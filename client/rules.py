"""Local rules: how a client trains on its own data, given its minibatches.

The ClientApp and the in-process engine use the same rules, settings and batch draws.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fedappeal.protocol.config import Count, CountOrZero, NonNegative, Positive, Settings
from fedappeal.protocol.draws import draw_seed

LossFunction = Callable[[Tensor, Tensor], Tensor]


class LocalWork(Settings):
    """How much a client trains and with which step: the settings every local rule shares."""

    learning_rate: Positive
    batch_size: Count
    local_steps: CountOrZero = 0
    local_epochs: CountOrZero = 0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0

    @classmethod
    def of(cls, *sources: Mapping[str, object]) -> "LocalWork":
        """Take the settings from the first source that has each of them.

        Raises:
            ConfigError: where one is missing or not allowed.
        """
        merged: dict[str, object] = {}
        names = cls.keys()
        for source in reversed(sources):
            merged |= {key: source[key] for key in names if key in source}
        return cls.parse(merged)

    def steps(self, num_examples: int) -> int:
        """Number of local steps: the setting, or as many as the epochs hold."""
        if self.local_steps:
            return self.local_steps
        return self.local_epochs * -(-num_examples // self.batch_size)


class LocalRule(Protocol):
    """Trains a model in place.

    ``batches`` are indices into ``x`` and ``y``, shape ``(steps, batch size)``; the model is in training mode.
    """

    def __call__(
        self,
        model: nn.Module,
        loss: LossFunction,
        x: Tensor,
        y: Tensor,
        batches: NDArray[np.int64],
        work: LocalWork,
    ) -> None:
        """Train ``model`` in place."""


def sgd(
    model: nn.Module, loss: LossFunction, x: Tensor, y: Tensor, batches: NDArray[np.int64], work: LocalWork
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


RULES: dict[str, LocalRule] = {"sgd": sgd}


@contextmanager
def seeded_noise(seed: int, client: str, server_round: int, device: torch.device) -> Iterator[None]:
    """Make the noise inside (dropout) a pure function of (seed, client, round), and leave the global RNG alone."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(draw_seed(seed, "noise", client=client, server_round=server_round))
        yield
