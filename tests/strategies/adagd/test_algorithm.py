"""ADA-GD: Algorithm 1 by hand and by an independent formula, and the settings of its strategy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedappeal.settings.config import ConfigError
from strategies import adagd
from strategies.adagd import AdaGD, theorem_step_size

Matrix = NDArray[np.float64]


def test_it_needs_losses_because_algorithm_1_compares_each_with_its_threshold() -> None:
    assert AdaGD.needs_losses


def test_case_one_by_hand() -> None:
    # eta = 0.1, eps = 1: agent 0 has 2.4 - 0.1 * 5 = 1.9 <= 2; 1 and 2 have 9 - 0.1 = 8.9 and 9 - 0.2 = 8.8.
    # Their sum is (0, 1, 2); (3, 4, 0)/5 takes 0.8 * (0.6, 0.8, 0) away; (-0.48, 0.36, 2) has norm sqrt(4.36).
    found = adagd.step([[3, 4, 0], [0, 1, 0], [0, 0, 2]], [2.4, 9, 9], step_size=0.1, precision=1.0)
    assert found.case == 1
    assert found.leaving.tolist() == [True, False, False]
    assert found.leaving.dtype == np.bool_
    assert found.direction == pytest.approx(np.array([0.48, -0.36, -2]) / math.sqrt(4.36), rel=1e-12)
    assert not found.stalled


def test_the_step_is_clipped_after_projecting_and_not_stretched() -> None:
    # (10, 0.3) less its part along (1, 0) is (0, 0.3), shorter than 1: clipping first would leave 0.03.
    found = adagd.step([[1.0, 0.0], [10.0, 0.3]], [1.0, 99.0], step_size=0.1, precision=1.0)
    assert found.direction == pytest.approx([0.0, -0.3], abs=1e-12)


def test_case_two_averages_over_all() -> None:
    found = adagd.step([[0.3, 0.0], [0.0, 0.3], [0.3, 0.3]], [9.0, 9.0, 9.0], step_size=0.1, precision=1.0)
    assert found.case == 2
    assert not found.leaving.any()
    assert found.direction == pytest.approx([-0.2, -0.2])
    far = adagd.step([[30.0, 0.0], [0.0, 40.0]], [99.0, 99.0], step_size=0.1, precision=1.0)
    assert far.direction == pytest.approx([-0.6, -0.8])  # (15, 20), clipped


def test_case_three_has_no_direction() -> None:
    found = adagd.step([[1.0, 0.0], [0.0, 1.0]], [2.0, 1.5], step_size=0.1, precision=1.0)
    assert (found.case, found.direction, found.stalled) == (3, None, False)
    assert found.leaving.all()


def test_at_exactly_twice_the_precision_an_agent_is_predicted_to_leave() -> None:
    # 3 - 0.25 * 4 = 2 = 2 eps, all exact in binary
    for loss, leaves in ((3.0, True), (math.nextafter(3.0, 4.0), False)):
        found = adagd.step([[4.0, 0.0], [0.0, 1.0]], [loss, 99.0], step_size=0.25, precision=1.0)
        assert found.leaving.tolist() == [leaves, False]
    assert adagd.step([[4.0]], [2.5], step_size=0.25, precision=1.0, slack=1.5).leaving.tolist() == [True]
    assert adagd.step([[4.0]], [2.6], step_size=0.25, precision=1.0, slack=1.5).leaving.tolist() == [False]


@pytest.mark.parametrize(
    "gradients",
    [
        [[1.0, 0.0], [0.0, 1.0], [5.0, -3.0]],  # those in D span the plane
        [[1.0, 2.0], [-3.0, -6.0], [2.0, 4.0]],  # all along one line
        [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
    ],
)
def test_stalled_where_nothing_is_left(gradients: list[list[float]]) -> None:
    found = adagd.step(gradients, [1.0, 1.0, 99.0], step_size=0.1, precision=1.0)
    assert (found.case, found.stalled) == (1, True)
    assert found.direction is not None
    assert found.direction.tolist() == [0.0, 0.0]
    level = adagd.step([[1.0, 0.0], [-1.0, 0.0]], [9.0, 9.0], step_size=0.1, precision=1.0)
    assert (level.case, level.stalled) == (2, True)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Matrix, Matrix, float, float]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    agents, size = draw(st.integers(1, 7)), draw(st.integers(1, 40))
    gradients = rng.normal(size=(agents, size)) * rng.choice([0.01, 1.0, 30.0], size=(agents, 1))
    return gradients, rng.uniform(0, 6, agents), float(rng.uniform(0.001, 0.1)), float(rng.uniform(0.1, 2))


@given(rounds(), st.sampled_from([np.float32, np.float64]))
def test_a_step_is_algorithm_one_by_least_squares(
    drawn: tuple[Matrix, Matrix, float, float], dtype: type[np.floating]
) -> None:
    gradients, losses, step_size, precision = drawn
    gradients = gradients.astype(dtype)
    found = adagd.step(gradients, losses, step_size, precision)

    exact = gradients.astype(np.float64)
    leaving = losses - step_size * np.linalg.norm(exact, axis=1) <= 2 * precision
    assert found.leaving.tolist() == leaving.tolist()
    if leaving.all():
        assert (found.case, found.direction) == (3, None)
        return
    if not leaving.any():
        assert found.case == 2
        v = exact.mean(axis=0)
    else:
        assert found.case == 1
        v = exact[~leaving].sum(axis=0)
        inside = (exact[leaving] / np.linalg.norm(exact[leaving], axis=1, keepdims=True)).T
        v = v - inside @ np.linalg.lstsq(inside, v, rcond=None)[0]
    expected = -v / max(np.linalg.norm(v), 1.0)
    assert found.direction is not None
    np.testing.assert_allclose(found.direction, expected, atol=1e-10)
    assert np.linalg.norm(found.direction) <= 1 + 1e-12
    for row in exact[leaving]:
        assert abs(found.direction @ row) <= 1e-6 * np.linalg.norm(row) * np.linalg.norm(found.direction)


def test_norms_that_float32_cannot_square() -> None:
    # |g| = 5e20; 1e30 - 1e-3 * 5e20 is far from 2 eps, but 1e30 - infinity would not be.
    gradients = np.array([[3e20, 4e20], [0.0, 1.0]], np.float32)
    found = adagd.step(gradients, [1e30, 9.0], step_size=1e-3, precision=1.0)
    assert found.case == 2
    assert found.direction == pytest.approx([-0.6, -0.8])
    sums = adagd.step(np.full((3, 1), 3e38, np.float32), [1e39] * 3, step_size=1e-3, precision=1.0)
    assert sums.direction == pytest.approx([-1.0])


@pytest.mark.parametrize(
    ("gradients", "losses", "line"),
    [
        ([[1.0, np.nan]], [1.0], "not finite"),
        ([[1.0, np.inf]], [1.0], "not finite"),
        ([[1.0, 1.0]], [np.nan], "not finite"),
        ([[1.0, 1.0]], [np.inf], "not finite"),
        ([1.0, 1.0], [1.0, 1.0], "shape"),
        ([[1.0, 1.0]], [1.0, 1.0], "shape"),
        ([[1.0, 1.0]], [[1.0]], "shape"),
        (np.empty((0, 3)), [], "shape"),
    ],
)
def test_what_step_refuses(gradients: list[list[float]], losses: list[float], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        adagd.step(gradients, losses, step_size=0.1, precision=1.0)


@pytest.mark.parametrize("name", ["step_size", "precision", "slack"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_settings_are_positive(name: str, value: float) -> None:
    settings = {"step_size": 0.1, "precision": 1.0} | {name: value}
    line = f"{name.replace('_', '-')} = {value} is not allowed"
    with pytest.raises(ConfigError, match=line):
        AdaGD(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=line):
        adagd.step([[1.0]], [1.0], **settings)


def test_settings_that_do_not_go_with_it() -> None:
    with pytest.raises(ConfigError, match="clients-per-round = 3 is not allowed with strategy = 'adagd'"):
        AdaGD(step_size=0.1, precision=1.0, clients_per_round=3)
    with pytest.raises(
        ConfigError, match=r"^adagd\.on-missing = 'skip' is not allowed: input should be 'wait' or 'proceed'"
    ):
        AdaGD(step_size=0.1, precision=1.0, on_missing="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "lipschitz", "smoothness", "agents", "expected"),
    [
        (0.1, 10.0, 1.0, 2, 0.01),  # epsilon / L; others: 0.22, 1.41, 0.5
        (0.02, 0.001, 1.0, 2, 0.1),  # sqrt(0.02 / 2); others: 20, 1.41, 0.5
        (0.08, 0.01, 4.0, 1, 0.1),  # sqrt(0.08 / 8); others: 8, 0.71, 0.25
        (1e6, 1.0, 0.5, 4, 0.5),  # 1 / (M H); others: 1e6, 1000, 2
        (1e6, 1.0, 0.32, 1, 2.5),  # sqrt(2 / 0.32) = 2.5; others: 1e6, 1250, 3.125
    ],
)
def test_the_step_size_of_theorem_one(
    precision: float, lipschitz: float, smoothness: float, agents: int, expected: float
) -> None:
    assert theorem_step_size(precision, lipschitz, smoothness, agents) == pytest.approx(expected, rel=1e-12)


def test_the_theorem_needs_positive_numbers() -> None:
    for index, name in enumerate(("precision", "lipschitz", "smoothness", "agents")):
        numbers = [1.0, 1.0, 1.0, 2]
        numbers[index] = 0
        with pytest.raises(ValueError, match=f"{name} = 0"):
            theorem_step_size(*numbers)  # type: ignore[arg-type]


def test_a_model_with_batch_normalisation_is_refused_by_its_layers() -> None:
    strategy = AdaGD(step_size=0.1, precision=1.0)
    strategy.check_model(["conv1.weight", "conv1.bias", "norm.running"])
    names = ["conv1.weight", "layer.bn1.running_mean", "layer.bn1.running_var", "bn2.num_batches_tracked"]
    with pytest.raises(ConfigError, match=r"BatchNorm is not allowed with strategy = 'adagd': layer\.bn1, bn2 "):
        strategy.check_model(names)
