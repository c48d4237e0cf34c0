"""Projection by Gram matrix, against factorisations that do not use one, for every kind of basis."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import strategies.projection
from strategies.projection import norm, orthogonal_component

Matrix = NDArray[np.float64]


def by_svd(vector: Matrix, basis: Matrix, cut: float = 1e-12) -> Matrix:
    """The same component from an orthonormal basis of the unit rows, all in float64; ``cut`` decides the rank."""
    rows = [row / np.linalg.norm(row) for row in basis.astype(np.float64) if np.linalg.norm(row) > 0]
    if not rows:
        return vector.astype(np.float64)
    _, values, right = np.linalg.svd(np.array(rows), full_matrices=False)
    kept = right[values > cut * values[0]]
    out = vector.astype(np.float64)
    for _ in range(3):
        out = out - kept.T @ (kept @ out)
    return out


def cosines(result: Matrix, basis: NDArray[np.floating]) -> Matrix:
    """|<result, row>| / (|result| |row|) in float64, rows scaled first so that nothing over- or underflows."""
    found = []
    for row in basis.astype(np.float64):
        if largest := np.abs(row).max():
            unit = row / largest
            found.append(abs(result @ unit) / (np.linalg.norm(unit) * np.linalg.norm(result)))
    return np.array(found)


def test_by_hand() -> None:
    # (3, 4, 5) less its part along (1, 1, 0)/sqrt 2, which is 3.5 (1, 1, 0); then less the one along e_3
    basis = np.array([[1.0, 1.0, 0.0]])
    vector = np.array([3.0, 4.0, 5.0])
    np.testing.assert_allclose(orthogonal_component(vector, basis), [-0.5, 0.5, 5.0], rtol=1e-15)
    oblique = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 1.0]])
    np.testing.assert_allclose(orthogonal_component(vector, oblique), [-0.5, 0.5, 0.0], atol=1e-13)


def test_projecting_on_one_row_after_another_is_not_enough() -> None:
    # Rows e_1 and e_1 + e_2 span the plane. Subtracting e_1's part of e_2 (none) and then the other's, e_2/2 + e_1/2,
    # would leave (-1/2, 1/2), whose cosine with e_1 is 0.7.
    basis = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], np.float32)
    np.testing.assert_array_equal(orthogonal_component(np.array([0, 1, 0], np.float32), basis), np.zeros(3))


@st.composite
def problems(draw: st.DrawFn) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """A float32 or float64 vector, and a basis with near-parallel, duplicate and zero rows of all lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, count = draw(st.integers(1, 400)), draw(st.integers(1, 12))
    rows = rng.normal(size=(count, size))
    for i in range(1, count):
        kind = draw(st.sampled_from(["oblique", "near", "duplicate", "opposite", "zero", "sum"]))
        if kind == "near":
            rows[i] = rows[i - 1] + draw(st.sampled_from([1e-1, 1e-3, 1e-5])) * rows[i]
        elif kind in ("duplicate", "opposite"):
            rows[i] = rows[i - 1] * (1 if kind == "duplicate" else -1)
        elif kind == "zero":
            rows[i] = 0
        elif kind == "sum":
            rows[i] = rows[:i].sum(axis=0)
    lengths = 10.0 ** np.array(draw(st.lists(st.integers(-12, 20), min_size=count, max_size=count)))
    vector = rng.normal(size=size) * 10.0 ** draw(st.integers(-12, 20))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return vector.astype(dtype), (rows * lengths[:, None]).astype(dtype)


@settings(max_examples=300)
@given(problems())
def test_the_result_is_orthogonal_to_every_row_whatever_the_basis(
    problem: tuple[NDArray[np.floating], NDArray[np.floating]],
) -> None:
    vector, basis = problem
    result = orthogonal_component(vector, basis)
    assert result.dtype == np.float64
    assert result.shape == vector.shape
    if result.any():
        assert cosines(result, basis).max(initial=0) <= 1e-6
        # The rest is in the span: what is taken away has no part that the rows do not explain.
        taken = vector.astype(np.float64) - result
        assert np.linalg.norm(by_svd(taken, basis, cut=1e-10)) <= 1e-5 * np.linalg.norm(vector.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("count", "size"), [(1, 2), (2, 1000), (10, 5000), (14, 3000), (40, 300), (3, 4)])
def test_it_is_the_component_that_an_svd_finds(count: int, size: int, dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(count)
    basis = rng.normal(size=(count, size)).astype(dtype)
    basis[1:] += 3 * basis[0]  # oblique
    vector = rng.normal(size=size).astype(dtype)
    result = orthogonal_component(vector, basis)
    np.testing.assert_allclose(result, by_svd(vector, basis), atol=1e-12 * float(np.linalg.norm(vector)))
    assert cosines(result, basis).max() <= 1e-12


@pytest.mark.parametrize("angle", [1e-1, 1e-3, 1e-5])
def test_near_parallel_rows_count_as_different_ones(angle: float) -> None:
    rng = np.random.default_rng(7)
    first, other, vector = rng.normal(size=(3, 2000))
    basis = np.array([first, first + angle * other], np.float32)
    result = orthogonal_component(vector.astype(np.float32), basis)
    np.testing.assert_allclose(result, by_svd(vector.astype(np.float32), basis), atol=1e-6 * np.linalg.norm(vector))
    assert cosines(result, basis).max() <= 1e-9


def test_many_rows_closer_than_float32_can_tell() -> None:
    rng = np.random.default_rng(8)
    basis = (rng.normal(size=500) + 1e-7 * rng.normal(size=(300, 500))).astype(np.float32)
    result = orthogonal_component(rng.normal(size=500).astype(np.float32), basis)
    assert result.any()
    assert cosines(result, basis).max() <= 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_left_where_the_rows_span_the_vector(dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(0)
    everything = rng.normal(size=(6, 5)).astype(dtype)
    few = rng.normal(size=(3, 2000)).astype(dtype)
    for vector, basis in (
        (rng.normal(size=5).astype(dtype), everything),
        (few[1], few),
        (-2 * few[0], few),
        ((few[0] + few[1] - few[2]).astype(dtype), few),  # up to the rounding of its own dtype
        (np.zeros(2000, dtype), few),
    ):
        np.testing.assert_array_equal(orthogonal_component(vector, basis), np.zeros(vector.size))


def test_rounding_that_near_parallel_rows_blow_up_is_not_taken_for_a_rest() -> None:
    # e = (b - a) / 1e-6: weights of 1e6 leave rounding of 1e-10, far above the resolution of float64.
    first, other = np.linalg.qr(np.random.default_rng(5).normal(size=(700, 2)))[0].T
    basis = np.array([first, first + 1e-6 * other])
    np.testing.assert_array_equal(orthogonal_component((basis[1] - basis[0]) * 1e6, basis), np.zeros(700))


def test_one_row_apart_from_hundreds_that_are_the_same() -> None:
    # The largest eigenvalue is 300: a cut relative to it alone, 3e-12, would take the second, 1.7e-12, for rounding.
    same, apart, free = np.linalg.qr(np.random.default_rng(6).normal(size=(900, 3)))[0].T
    basis = np.array([same] * 300 + [same + 1.3e-6 * apart])
    np.testing.assert_allclose(orthogonal_component(apart + 0.1 * free, basis), 0.1 * free, atol=1e-5)


def test_a_small_rest_that_is_no_rounding_is_kept() -> None:
    basis = np.array([[1, 0, 0]], np.float32)
    np.testing.assert_allclose(orthogonal_component(np.array([1, 1e-5, 0], np.float32), basis), [0, 1e-5, 0])
    tiny = orthogonal_component(np.array([1.0, 1e-12, 0]), basis.astype(np.float64))
    np.testing.assert_allclose(tiny, [0, 1e-12, 0])


def test_lengths_at_the_ends_of_the_dtype() -> None:
    for dtype, lengths in ((np.float32, (1e-38, 3e38)), (np.float64, (1e-300, 1e300))):
        rng = np.random.default_rng(1)
        directions = rng.uniform(-1, 1, size=(2, 50))
        basis = np.array([d * length for d, length in zip(directions, lengths, strict=True)], dtype)
        for length in lengths:
            vector = (rng.uniform(-1, 1, size=50) * length).astype(dtype)
            result = orthogonal_component(vector, basis)
            assert 0.5 < np.abs(result).max() / np.abs(vector).max() < 1.5
            assert cosines(result / length, basis).max() <= 1e-6


def test_zero_rows_and_no_rows_take_nothing_away() -> None:
    vector = np.array([1, -2], np.float32)
    for basis in (np.zeros((3, 2), np.float32), np.zeros((0, 2), np.float32)):
        result = orthogonal_component(vector, basis)
        assert result.tolist() == [1.0, -2.0]
        assert not np.shares_memory(result, vector)


def test_rows_one_by_one_and_a_matrix_are_the_same_and_stay_as_they_are() -> None:
    rng = np.random.default_rng(3)
    basis, vector = rng.normal(size=(4, 30)), rng.normal(size=30)
    before = basis.copy(), vector.copy()
    one = orthogonal_component(vector, basis)
    assert np.array_equal(orthogonal_component(vector, list(basis)), one)
    assert np.array_equal(basis, before[0])
    assert np.array_equal(vector, before[1])


@pytest.mark.parametrize("count", [3, 20])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    rng = np.random.default_rng(4)
    basis, vector = rng.normal(size=(count, 3001)), rng.normal(size=3001)
    whole, length = orthogonal_component(vector, basis), norm(vector)
    monkeypatch.setattr(strategies.projection, "_SCRATCH", 512)
    np.testing.assert_allclose(orthogonal_component(vector, basis), whole, atol=1e-13)
    assert norm(vector) == pytest.approx(length, rel=1e-14) == pytest.approx(np.linalg.norm(vector), rel=1e-14)


def test_no_copy_of_the_basis_is_made() -> None:
    basis, vector = np.ones((40, 100_000), np.float32), np.arange(100_000, dtype=np.float32)
    basis[np.arange(40), np.arange(40)] += 1
    orthogonal_component(vector[:10], basis[:, :10])  # what is allocated once is not counted
    tracemalloc.start()
    result = orthogonal_component(vector, basis)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cosines(result, basis).max() <= 1e-9
    assert peak < basis.nbytes / 2  # a float64 copy would be twice its size


def test_values_that_are_not_finite_and_shapes_that_do_not_fit_are_refused() -> None:
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            orthogonal_component(np.array([1.0, bad]), np.array([[1.0, 0.0]]))
        with pytest.raises(ValueError, match="not finite"):
            orthogonal_component(np.array([1.0, 0.0]), np.array([[1.0, 0.0], [bad, 0.0]]))
    for shape in ((2, 3), (2,)):
        with pytest.raises(ValueError, match="shape"):
            orthogonal_component(np.ones(2), np.ones(shape))


def test_a_norm_that_squares_would_overflow() -> None:
    assert norm(np.array([3e38, 0], np.float32)) == pytest.approx(3e38)
    assert norm(np.full(4, 1e-30, np.float32)) == pytest.approx(2e-30)
    assert norm(np.array([3e300, 4e300])) == pytest.approx(5e300)
    assert norm(np.array([3e-300, 4e-300])) == pytest.approx(5e-300)
    assert norm(np.zeros(3)) == 0.0


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40])
def test_a_vector_may_be_of_any_length_beside_the_rows(scale: float) -> None:
    # As by hand: (3, 4, 5) less its part along (1, 1, 0).
    vector, basis = np.array([3.0, 4.0, 5.0], np.float32), np.array([[1.0, 1.0, 0.0]], np.float32)
    left = orthogonal_component(np.float32(scale) * vector, basis)
    np.testing.assert_allclose(left / scale, [-0.5, 0.5, 5.0], rtol=1e-6)


def test_rounding_of_a_vector_within_the_span_is_nothing_however_short_the_row() -> None:
    rng = np.random.default_rng(1)
    row = rng.normal(size=1000).astype(np.float32)
    assert not orthogonal_component(row / 3, [np.float32(1e-12) * row]).any()
