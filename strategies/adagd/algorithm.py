r"""ADA-GD's mathematics: one step of Algorithm 1, and the step size of Theorem 1.

"On the Effect of Defection in Federated Learning and How to Prevent It", anonymous, under review. Algorithm 1.

Agent m leaves for good once ``F_m(w) <= epsilon``. With full gradients ``g_m = grad F_m(w)`` of all M agents the
server predicts who would leave after a step along its own gradient (line 4)::

    D = {m : F_m(w) - eta |g_m| <= 2 epsilon}

and moves ``w <- w - eta v / max(|v|, 1)`` (lines 10, 12 and 15) with

    case 1   some are in D, some are not    v = sum of g_m over m not in D, made orthogonal to every g_m, m in D
    case 2   D is empty                     v = mean of g_m over all
    case 3   all are in D                   the run ends; w is the answer, every F_m(w) between epsilon and 4 epsilon

Case 1 sums and case 2 averages, and the step is clipped after projecting, as printed. Whether m is in D depends on
its own loss and gradient alone, so it is decided when the reply comes: only the gradients of D are kept, and one sum.

The local form is our own, and beyond the theorem. In place of ``g_m`` stands ``u_m``, what client m's K_m local steps
with learning rate eta_l take off the model: ``eta_l`` times the sum of their gradients. Line 4 looks one of these
steps ahead, along their mean gradient, so with eta = eta_l::

    D = {m : F_m(w) - |u_m| / K_m <= 2 epsilon}

and the model moves by ``w <- w - v``, unclipped, where v is the mean of u_m outside D in case 1 as well, made
orthogonal to every u_m in D. With an empty D a round is FedAvg's with equal weights.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedappeal.settings.config import ConfigError
from strategies.projection import Vector, norm, orthogonal_component


def theorem_step_size(precision: float, lipschitz: float, smoothness: float, agents: int) -> float:
    """Return the largest step size of Theorem 1, at which no agent leaves.

    Args:
        precision: epsilon.
        lipschitz: L, of every F_m (Assumption 2).
        smoothness: H, of every F_m (Assumption 1).
        agents: M.

    Returns:
        ``min(epsilon / L, sqrt(epsilon / 2H), sqrt(2 / H), 1 / (M H))``.

    Raises:
        ValueError: if one of them is not positive.
    """
    check_positive(precision=precision, lipschitz=lipschitz, smoothness=smoothness, agents=agents)
    return min(
        precision / lipschitz,
        math.sqrt(precision / (2 * smoothness)),
        math.sqrt(2 / smoothness),
        1 / (agents * smoothness),
    )


def clipped_direction(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the step's direction ``-v / max(|v|, 1)`` (lines 10 and 12)."""
    return vector / -max(norm(vector), 1.0)


@dataclass
class Gathered:
    """Replies as Algorithm 1 keeps them: the gradients in D, the others' sum.

    Attributes:
        step_size: eta; in the local form 1, the gradients' place being taken by u_m.
        threshold: D holds agents with a predicted loss of at most that (the paper: 2 epsilon).
        leaving: the gradients in D, each of shape ``(d,)``.
        rest: sum of the others in float64, shape ``(d,)``; None while there is none.
        losses: F_m of all, in the order in which they came.
        local: whether it is the local form.
    """

    step_size: float
    threshold: float
    leaving: list[Vector] = field(default_factory=list)
    rest: NDArray[np.float64] | None = None
    losses: list[float] = field(default_factory=list)
    local: bool = False

    def add(self, loss: float, gradient: Vector, counted: Vector | None = None, steps: int = 1) -> bool:
        """Take in one agent's F_m and gradient; return whether it is in D.

        ``counted`` is what counts of the gradient in the sum; None where all of it does. ``steps``: K_m, in the local
        form.
        """
        counted = gradient if counted is None else counted
        leaves = loss - self.step_size / steps * norm(gradient) <= self.threshold
        if leaves:
            self.leaving.append(gradient)
        elif self.rest is None:
            self.rest = counted.astype(np.float64)
        else:
            self.rest += counted
        self.losses.append(loss)
        return leaves

    def move(self) -> tuple[int, NDArray[np.float64] | None]:
        """Return the case and the direction of the step.

        The direction has shape ``(d,)``: None in case 3, zeros where the step is stalled.
        """
        if self.rest is None:
            return 3, None
        if self.local:
            mean = self.rest / (len(self.losses) - len(self.leaving))
            return (1, -orthogonal_component(mean, self.leaving)) if self.leaving else (2, -mean)
        if self.leaving:
            return 1, clipped_direction(orthogonal_component(self.rest, self.leaving))
        return 2, clipped_direction(self.rest / len(self.losses))


@dataclass(frozen=True)
class AdaGDStep:
    """One step of Algorithm 1.

    Attributes:
        case: 1, 2 or 3.
        leaving: the predicted set D, bool, shape ``(M,)``.
        direction: the next model is ``w + step_size * direction``; float64, shape ``(d,)``, None in case 3.
        stalled: whether nothing was left of the step: the direction is zero.
    """

    case: int
    leaving: NDArray[np.bool_]
    direction: NDArray[np.float64] | None
    stalled: bool


def step(
    gradients: ArrayLike, losses: ArrayLike, step_size: float, precision: float, slack: float = 2.0
) -> AdaGDStep:
    """Return one step of Algorithm 1 for the gradients and losses of all agents.

    Args:
        gradients: g_m, shape ``(M, d)``.
        losses: F_m(w), shape ``(M,)``.
        step_size: eta.
        precision: epsilon.
        slack: factor on epsilon in line 4.

    Raises:
        ValueError: for other shapes, a value that is not finite, or a setting that is not positive.
    """
    check_positive(step_size=step_size, precision=precision, slack=slack)
    return one_step(Gathered(step_size, slack * precision), gradients, losses)


def one_step(gathered: Gathered, gradients: ArrayLike, losses: ArrayLike) -> AdaGDStep:
    """Return one round's step, from its empty `Gathered`; arguments and errors as `step`."""
    rows, values = np.asarray(gradients), np.asarray(losses, dtype=np.float64)
    if rows.ndim != 2 or values.shape != (len(rows),) or not len(rows):
        raise ValueError(f"gradients of shape {rows.shape} and losses of shape {values.shape}: (M, d) and (M,)")
    if not np.issubdtype(rows.dtype, np.floating):
        rows = rows.astype(np.float64)
    if not np.isfinite(values).all() or not all(np.isfinite(row).all() for row in rows):
        raise ValueError("a loss or a gradient has values that are not finite")
    leaving = [gathered.add(float(loss), row) for loss, row in zip(values, rows, strict=True)]
    case, direction = gathered.move()
    return AdaGDStep(case, np.array(leaving), direction, direction is not None and not direction.any())


def check_positive(**settings: float) -> None:
    """Refuse settings that are not more than 0 and finite.

    Raises:
        ConfigError: names the setting.
    """
    for name, value in settings.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name.replace('_', '-')} = {value} is not allowed: more than 0")
