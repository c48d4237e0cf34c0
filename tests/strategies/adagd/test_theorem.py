"""Theorem 1 as it is stated: nobody leaves, the run ends in case 3 with F <= 4 eps; averaging loses everybody."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from fedappeal.protocol import keys
from strategies import AdaGD, adagd
from strategies.adagd import theorem_step_size
from strategies.adagd.strategy import CASE_3
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Watch, model, time_of, values_of
from tests.strategies.adagd.agents import Agent

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """F_m(w) = mean over the rows a of agent m of h(<a, w - w*>), with h convex, smooth and h(0) = 0.

    Attributes:
        rows: shape ``(M, n, d)``.
        optimum: w*, where every F_m is 0 (Assumption 3).
        width: h(x) is x^2 / (2 width) up to there, and linear beyond it; infinite width: h(x) = x^2 / 2.
    """

    rows: Values
    optimum: Values
    width: float = np.inf

    def losses(self, w: Values) -> Values:
        x = np.abs(self.rows @ (w - self.optimum))
        if self.width == np.inf:
            return (x**2 / 2).mean(axis=1)
        return np.where(x <= self.width, x**2 / (2 * self.width), x - self.width / 2).mean(axis=1)

    def gradients(self, w: Values) -> Values:
        x = self.rows @ (w - self.optimum)
        slopes = x if self.width == np.inf else np.clip(x / self.width, -1, 1)
        return np.einsum("mn,mnd->md", slopes, self.rows) / self.rows.shape[1]

    @property
    def smoothness(self) -> float:
        """H: h'' is at most 1 / width, times the largest eigenvalue of the rows' second moment."""
        curvature = max(np.linalg.norm(a, 2) ** 2 / len(a) for a in self.rows)
        return float(curvature / (1.0 if self.width == np.inf else self.width))


# Example 1, |w_2| and |w_1 - w_2|, with the kinks rounded off: L = sqrt 2, H = 2 / width.
EXAMPLE = Problem(np.array([[[0.0, 1.0]], [[1.0, -1.0]]]), np.zeros(2), width=0.1)
START = np.array([2.0, 1.0])
PRECISION = 0.03
STEP = theorem_step_size(PRECISION, 2**0.5, EXAMPLE.smoothness, 2)


def least_squares(seed: int) -> Problem:
    """Four agents with three equations each in 40 unknowns: any of them can be met, and all at once."""
    rng = np.random.default_rng(seed)
    return Problem(rng.normal(size=(4, 3, 40)) / 40**0.5, rng.normal(size=40))


def descend(problem: Problem, start: Values, eta: float, precision: float, cap: int) -> tuple[Values, list[int]]:
    """Run Algorithm 1 and check at each step what its lemmas say; return the model at the end, and the cases."""
    w, cases = start, list[int]()
    agents = len(problem.rows)
    for _ in range(cap):
        losses, gradients = problem.losses(w), problem.gradients(w)
        assert losses.min() > precision  # Lemma 2: nobody leaves
        found = adagd.step(gradients, losses, eta, precision)
        cases.append(found.case)
        if found.direction is None:
            break
        assert not found.stalled  # Lemma 1
        w = w + eta * found.direction
        after = problem.losses(w)
        assert (after[found.leaving] >= losses[found.leaving] - 1e-12).all()  # Lemma 2: orthogonal and convex
        # Lemma 7: |direction|^2 is min(|v|^2, 1), with v the projected sum in case 1 and the mean in case 2.
        progress = eta / 2 * float(found.direction @ found.direction)
        assert losses.mean() - after.mean() >= progress / (agents if found.case == 1 else 1) - 1e-12
    return w, cases


def test_the_examples_constants() -> None:
    rng = np.random.default_rng(0)
    for problem in (EXAMPLE, least_squares(0)):
        size = len(problem.optimum)
        for _ in range(200):
            w, other = problem.optimum + rng.normal(size=(2, size)) * 0.3
            gradients = problem.gradients(w)
            difference = np.linalg.norm(gradients - problem.gradients(other), axis=1)
            assert (difference <= problem.smoothness * np.linalg.norm(w - other) + 1e-12).all()
            ahead = [problem.losses(w + 1e-6 * e) - problem.losses(w - 1e-6 * e) for e in np.eye(size)]
            np.testing.assert_allclose(np.array(ahead).T / 2e-6, gradients, atol=1e-4)
    assert EXAMPLE.losses(START) == pytest.approx([0.95, 0.95])  # 1 - width / 2


def test_example_one_ends_with_both_agents_served() -> None:
    w, cases = descend(EXAMPLE, START, STEP, PRECISION, cap=500)
    # First both at once, then agent 1 alone along what does not serve agent 2, then the end.
    assert cases == sorted(cases, key=[2, 1, 3].index)
    assert set(cases) == {1, 2, 3}
    losses = EXAMPLE.losses(w)
    assert losses.mean() <= 4 * PRECISION
    assert losses.min() > PRECISION


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_least_squares_ends_with_every_agent_served(seed: int) -> None:
    problem, precision = least_squares(seed), 0.05
    start = np.zeros(40)
    # Lipschitz in a ball around w*, |g| <= H |w - w*|, which the run must not leave.
    radius = 1.5 * float(np.linalg.norm(problem.optimum))
    step_size = theorem_step_size(precision, problem.smoothness * radius, problem.smoothness, 4)
    w, cases = descend(problem, start, step_size, precision, cap=20_000)
    assert np.linalg.norm(w - problem.optimum) <= radius
    assert cases[-1] == 3
    assert {1, 3} <= set(cases) <= {1, 2, 3}
    assert problem.losses(w).mean() <= 4 * precision


def test_averaging_loses_both_agents_of_example_one() -> None:
    w, left = START, np.zeros(2, dtype=bool)
    order = []
    for _ in range(500):
        content = EXAMPLE.losses(w) <= PRECISION
        order += [m for m in (0, 1) if content[m] and not left[m]]
        left |= content
        if left.all():
            break
        w = w - STEP * EXAMPLE.gradients(w)[~left].mean(axis=0)
    # The mean gradient (1/2, 0) leaves w_2 = 1 until agent 2 has w_1 - w_2 = eps + width / 2 = 0.08; then w_2 falls
    # alone to 0.08: w = (1.08, 0.08), F_2 = 1 - width / 2 = 0.95, F = (0.03 + 0.95) / 2; each within a step.
    assert order == [1, 0]
    assert w == pytest.approx([1.08, 0.08], abs=STEP)
    assert EXAMPLE.losses(w).mean() == pytest.approx(0.49, abs=STEP)


def agent(index: int) -> Agent:
    return Agent(
        f"agent-{index}",
        lambda w: float(EXAMPLE.losses(w)[index]),
        lambda w: EXAMPLE.gradients(w)[index],
        precision=PRECISION,
    )


def test_example_one_through_messages() -> None:
    agents = [agent(0), agent(1)]
    grid = MemoryGrid({10: agents[0], 11: agents[1]})
    watch = Watch()
    strategy = AdaGD(step_size=STEP, precision=PRECISION, evaluate_every=0)
    with time_of(grid):
        result = strategy.start(grid, model(*START), 500, hooks=watch)
    assert rounds_of(strategy).finished == CASE_3
    assert len(watch.records) < 500
    assert not any(a.left for a in agents)
    assert all(r.decisions == {"agent-0": "joined", "agent-1": "joined"} for r in watch.records)
    assert min(min(a.seen) for a in agents) > PRECISION
    final = EXAMPLE.losses(np.array(values_of(result.arrays)))
    assert final.mean() <= 4 * PRECISION
    assert watch.records[-1].metrics["agents_loss"] == pytest.approx(final.mean(), rel=1e-6)
    # In float32 the run is the one that `descend` finds in float64.
    exact, cases = descend(EXAMPLE, START, STEP, PRECISION, cap=500)
    assert [r.metrics["case"] for r in watch.records] == cases
    assert values_of(result.arrays) == pytest.approx(exact, abs=1e-4)
    told = [m.content.config_records[keys.CONFIG] for m in grid.sent("evaluate")]
    assert [config[keys.FINAL] for config in told] == [1, 1]
