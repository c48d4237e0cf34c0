r"""ADA-GD's examples in the plane (section 3, figure 5): two agents, uniform aggregation against ADA-GD.

Example 1: ``F_1(w) = |w_2|``, ``F_2(w) = |w_1 - w_2|``. Observation 4's family: ``F_1(w) = max(w_2, 0)``,
``F_2(w) = max(w_1 - w_2 + alpha, 0)``. An agent leaves for good once its loss is at most epsilon. `uniform` is any
algorithm of section 2 that averages the gradients of the agents that have not left, with a free choice of step sizes;
`adagd` is Algorithm 1 by the strategy's own `strategies.adagd.step`, with agents that would leave in the same way.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROWS: Floats = np.array([[0.0, 1.0], [1.0, -1.0]])
"""Agent m's loss is a function of ``<ROWS[m], w>``; each loss is sqrt(2)-Lipschitz."""

PRECISION = 0.1
"""epsilon in figure 5."""


class ToyAgents(Protocol):
    """Agents whose losses and gradients are known."""

    def losses(self, w: Floats, /) -> Floats:
        """Return every F_m, shape ``(..., M)``, of models ``(..., d)``."""

    def gradients(self, w: Floats, /) -> Floats:
        """Return every gradient at one model, shape ``(M, d)``."""


@dataclass(frozen=True)
class ToyProblem:
    """Two agents in the plane.

    Attributes:
        alpha: of Observation 4's P_alpha; None: Example 1.
    """

    alpha: float | None = None

    def losses(self, w: Floats) -> Floats:
        """Return F_1 and F_2 of models ``(..., 2)``, shape ``(..., 2)``."""
        inner = self._inner(w)
        return np.asarray(np.abs(inner) if self.alpha is None else np.maximum(inner, 0.0))

    def gradients(self, w: Floats) -> Floats:
        """Return both agents' subgradients at one model, shape ``(2, 2)``; zero at kinks.

        F_1's is the first row.
        """
        slopes = np.sign(self._inner(w))
        return np.asarray((slopes if self.alpha is None else np.maximum(slopes, 0.0))[:, None] * ROWS)

    def bad_region(self, w: Floats, precision: float) -> NDArray[np.bool_]:
        """Return the mask of models where one agent leaves and the other cannot reach S*.

        Of models ``(..., 2)``.

        An agent that is left alone can move the model along its own gradient only: agent 1 along (0, 1), which keeps
        w_1, and agent 2 along (1, -1), which keeps w_1 + w_2. S* meets such a line, for Example 1, where
        ``|w_1| <= 2 epsilon`` or ``|w_1 + w_2| <= 3 epsilon``; for P_alpha without the bars, alpha less.
        """
        content = self.losses(w) <= precision
        shift = 0.0 if self.alpha is None else self.alpha
        across, along = w[..., 0], w[..., 0] + w[..., 1]
        if self.alpha is None:
            across, along = np.abs(across), np.abs(along)
        alone_1 = content[..., 1] & ~content[..., 0] & (across > 2 * precision - shift)
        alone_2 = content[..., 0] & ~content[..., 1] & (along > 3 * precision - shift)
        return np.asarray(alone_1 | alone_2)

    def _inner(self, w: Floats) -> Floats:
        return np.asarray(w @ ROWS.T + np.array([0.0, self.alpha or 0.0]))


@dataclass(frozen=True)
class Trajectory:
    """An algorithm's path.

    Attributes:
        points: the models, the start first, shape ``(T + 1, d)``.
        losses: every F_m of each, shape ``(T + 1, M)``.
        left: agent, from 0 -> index of the model with which it left.
        stopped: whether the algorithm itself ended the run (ADA-GD's case 3).
    """

    points: Floats
    losses: Floats
    left: dict[int, int]
    stopped: bool = False

    @property
    def loss(self) -> float:
        """F of the last model."""
        return float(self.losses[-1].mean())

    def harmful(self, precision: float) -> bool:
        """Whether an agent left and the last model is outside S* (section 2)."""
        return bool(self.left) and bool((self.losses[-1] > precision).any())


StepRule = Callable[[Floats, list[int], float], tuple[Floats | None, bool]]
"""Of a model, the agents that stay and a step size: the change; None: the path ends, and whether by its algorithm."""


def _follow(
    problem: ToyAgents, start: Iterable[float], steps: Iterable[float], precision: float, move: StepRule
) -> Trajectory:
    """Return the path of an algorithm until no agent is left, the steps end or it stops."""
    w = np.array(list(start), dtype=np.float64)
    points, left, stopped = [w], dict[int, int](), False
    _leave(problem.losses(w), precision, left, 0)
    for r, step in enumerate(steps, 1):
        if not (there := [m for m in range(len(problem.losses(w))) if m not in left]):
            break
        change, stopped = move(w, there, step)
        if change is None:
            break
        w = w + change
        points.append(w)
        _leave(problem.losses(w), precision, left, r)
    return Trajectory(np.array(points), problem.losses(np.array(points)), left, stopped)


def _leave(losses: Floats, precision: float, left: dict[int, int], index: int) -> None:
    for m, loss in enumerate(losses):
        if loss <= precision:
            left.setdefault(m, index)


def uniform(problem: ToyAgents, start: Iterable[float], steps: Iterable[float], precision: float) -> Trajectory:
    """Return the path along the mean gradient of the agents that stay.

    Until none is left or the steps end.

    Args:
        problem: the agents.
        start: w_0.
        steps: the step sizes eta_r.
        precision: epsilon.
    """

    def move(w: Floats, there: list[int], step: float) -> tuple[Floats, bool]:
        return -step * problem.gradients(w)[there].mean(axis=0), False

    return _follow(problem, start, steps, precision, move)


def adagd(
    problem: ToyAgents, start: Iterable[float], step_size: float, precision: float, rounds: int = 10_000
) -> Trajectory:
    """Return the path of Algorithm 1 until it stops.

    Where an agent leaves all the same, with the other one.

    Args:
        problem: the agents.
        start: w_0.
        step_size: eta.
        precision: epsilon.
        rounds: the most rounds.
    """
    from strategies.adagd import step

    def move(w: Floats, there: list[int], eta: float) -> tuple[Floats | None, bool]:
        new = step(problem.gradients(w)[there], problem.losses(w)[there], eta, precision)
        if new.direction is None or new.stalled:
            return None, new.direction is None
        return eta * new.direction, False

    return _follow(problem, start, repeat(step_size, rounds), precision, move)


def harmful_steps(problem: ToyProblem, start: Floats, precision: float) -> tuple[float, float] | None:
    """Return two step sizes that lose both agents outside S*; None without such.

    Averaging loses them (Observation 3).

    The first leads somewhere into one agent's S_m; the second takes the other one, alone then, into its own at the
    end that is farther from S_m.

    Returns:
        The steps; None where no two do so.
    """
    mean = problem.gradients(start).mean(axis=0)
    outside = (problem.losses(start) > precision).all()
    lengths = np.linspace(0.0, 6.0, 6001) if outside else np.zeros(1)
    reached = problem.losses(start - lengths[:, None] * mean) <= precision
    for length in lengths[reached.any(axis=1) & ~reached.all(axis=1)]:
        w = start - length * mean
        there = int(np.argmax(problem.losses(w)))
        gradient = problem.gradients(w)[there]
        for level in (-0.99 * precision, 0.99 * precision):
            step = float((problem.losses(w)[there] - level) / (gradient @ gradient))
            if (problem.losses(w - step * gradient) > precision).any():
                return float(length), step
    return None


def harmful_shift(start: Iterable[float], steps: Iterable[float], precision: float) -> float:
    """Return Observation 4's alpha' for some step sizes.

    With it, averaging by these ends outside S*.

    Until agent 2 leaves in P_0, averaging goes the same way in every P_alpha. The model on which it leaves has
    F_2 = 0 in P_alpha': agent 2 leaves there too, and agent 1 alone cannot reach a model that is good for both. Where
    F_2 is above 0 in P_0 already, alpha' is 0.

    Raises:
        ValueError: agent 2 never leaves in P_0.
    """
    path = uniform(ToyProblem(0.0), start, steps, precision)
    if 1 not in path.left:
        raise ValueError("agent 2 does not leave with these steps")
    return max(0.0, -float(ROWS[1] @ path.points[path.left[1]]))
