"""What a client may use of a model that it is sent, and of its own last one: `use = best`.

It takes the best, by its held-out data, of the shared model as it is sent, the same after the client's own steps, and
blends ``(1 - p) own + p shared``. It trains from the model or the blend that it took. FedALA (Zhang et al., AAAI
2023) and APFL (Deng et al., 2020) mix models for clients that cannot opt out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.learner import Job
from fedappeal.protocol.packing import Arrays

SHARES = (0.05, 0.1, 0.2, 0.4, 0.7)
"""p of the blends; p = 1 is the shared model as it is sent."""


@dataclass(frozen=True, eq=False)
class Blend:
    """A blend of the client's own last model and a shared one.

    Attributes:
        share: p, the shared model's.
        own: the floating-point arrays that travel, of the client's own last model.
        own_round: the round in which it was trained.
    """

    share: float
    own: Arrays
    own_round: int

    @property
    def name(self) -> str:
        """The blend as a text."""
        return f"blend {self.share:g} of round {self.own_round}"

    def of(self, arrays: Arrays) -> Arrays:
        """Return a model with its floating-point arrays that travel blended; others stay as they are."""
        own = self.own
        return {name: self._of(own[name], array) if name in own else array for name, array in arrays.items()}

    def _of(self, own: Any, shared: Any) -> Any:
        return (1 - self.share) * own + self.share * shared


Way = Job | Blend | None
"""What a client does with a model before it uses it: its own steps, a blend, or nothing."""


def blends(own: Arrays, own_round: int) -> Iterator[Blend]:
    """Yield the blends with a client's own model; none before there is one."""
    if own:
        yield from (Blend(share, own, own_round) for share in SHARES)


def floating(arrays: Arrays) -> Arrays:
    """Return the arrays that can be blended: those of floating-point numbers."""
    return {name: array for name, array in arrays.items() if np.issubdtype(array.dtype, np.floating)}
