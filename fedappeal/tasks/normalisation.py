"""How a task scales raw inputs before a model sees them; importing this module loads no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Constant = float | tuple[float, ...]
"""One number, or one for each channel (the first axis of an example)."""


@dataclass(frozen=True)
class Normalisation:
    """The formula ``(raw / scale - mean) / std``.

    Attributes:
        scale: the largest value of raw integers; raw floats lie in [0, 1] and are not divided.
        mean: mean of the scaled inputs.
        std: their standard deviation.
    """

    scale: float
    mean: Constant
    std: Constant

    def apply(self, raw: NDArray[np.generic], scale: float | None = None) -> "Tensor":
        """Return inputs scaled and normalised: float32, the shape of ``raw``.

        Args:
            raw: shape ``(n, *input_shape)``.
            scale: what they are divided by; None: the formula's.
        """
        import torch

        x = torch.from_numpy(raw.astype(np.float32))
        return x.div_(self.scale if scale is None else scale).sub_(_spread(self.mean, x)).div_(_spread(self.std, x))

    def inputs(self, raw: NDArray[np.generic], task: str) -> "Tensor":
        """Return raw inputs scaled and normalised, after a look at their range.

        Args:
            raw: shape ``(n, *input_shape)``; integers from 0 to ``scale``, or floats in [0, 1].
            task: name of the task, for the message.

        Raises:
            ValueError: values out of range.
        """
        scale = self.scale if raw.dtype.kind in "iu" else 1.0
        for value in (raw.min(), raw.max()):
            if not 0 <= value <= scale:
                raise ValueError(
                    f"a pixel is {value:g}: for task {task!r} they are integers from 0 to {self.scale:g}, "
                    f"or floats from 0 to 1"
                )
        return self.apply(raw, scale)


def _spread(constant: Constant, x: "Tensor") -> "float | Tensor":
    if not isinstance(constant, tuple):
        return constant
    return x.new_tensor(constant).view(1, -1, *(1 for _ in x.shape[2:]))
