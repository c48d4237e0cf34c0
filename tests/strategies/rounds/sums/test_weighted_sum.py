"""Folding models into a weighted sum: against NumPy, in any order, and what is refused."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies.rounds.reply import Refused
from strategies.rounds.sums.weighted_sum import WeightedSum


def record(**arrays: NDArray[np.generic]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def models(seed: int, count: int, size: int, dtype: type = np.float32) -> list[NDArray[np.generic]]:
    return [m.astype(dtype) for m in np.random.default_rng(seed).normal(size=(count, size))]


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from([np.float32, np.float64]))
def test_the_sum_is_numpys_weighted_average_in_any_order(seed: int, count: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    values = models(seed, count, 40_000 if seed % 7 == 0 else 11, dtype)
    weights = rng.uniform(0.1, 50, count)
    results = []
    for order in (range(count), rng.permutation(count)):
        total = WeightedSum(record(w=np.zeros_like(values[0])))
        for k in order:
            total.add(record(w=values[k]), weights[k])
        assert total.count == count
        assert total.weight == pytest.approx(weights.sum())
        results.append(total.combine(keep=0.0, scale=1 / total.weight)["w"].numpy())
    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    expected = np.average(np.stack(values).astype(np.float64), axis=0, weights=weights)
    for result in results:
        assert result.dtype == dtype
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_combine_keeps_a_share_of_the_model_that_was_sent() -> None:
    total = WeightedSum(record(a=np.array([[1.0, 2.0]], np.float32), b=np.array(4.0)))
    total.add(record(a=np.array([[10.0, 20.0]], np.float32), b=np.array(8.0)), 0.5)
    mixed = total.combine(keep=0.25, scale=2.0)
    assert mixed["a"].numpy().tolist() == [[10.25, 20.5]]
    assert mixed["b"].numpy().shape == ()
    assert float(mixed["b"].numpy()) == 9.0


def test_integer_arrays_are_rounded_and_keep_their_type() -> None:
    total = WeightedSum(record(n=np.array([0, 0, 0])))
    total.add(record(n=np.array([1, 10, -5])), 1.0)
    total.add(record(n=np.array([2, 11, -9])), 2.0)
    mixed = total.combine(keep=0.0, scale=1 / 3)["n"].numpy()
    assert mixed.dtype == np.int64
    assert mixed.tolist() == [2, 11, -8]  # 5/3, 32/3, -23/3


LIKE = record(a=np.zeros(3, np.float32), b=np.zeros((2, 2)))
GOOD = {"a": np.ones(3, np.float32), "b": np.ones((2, 2))}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"a": np.array([1, np.nan, 1], np.float32)}, "'a' has values that are not finite"),
        ({"b": np.array([[1, np.inf], [1, 1]])}, "'b' has values that are not finite"),
        ({"b": np.array([[np.inf, -np.inf], [1, 1]])}, "'b' has values that are not finite"),
        ({"a": np.ones(4, np.float32)}, "shape"),
        ({"b": np.ones(4)}, "shape"),
        ({"a": np.ones(3, np.float64)}, "dtype"),
        ({"c": np.ones(1)}, r"expected \['a', 'b'\]"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_and_changes_nothing(
    wrong: dict[str, NDArray[np.generic]], reason: str
) -> None:
    total = WeightedSum(LIKE)
    total.add(record(**GOOD), 2.0)
    with pytest.raises(Refused, match=reason):
        total.add(record(**(GOOD | wrong)), 1.0)
    with pytest.raises(Refused, match="expected"):
        total.add(record(a=GOOD["a"]), 1.0)
    after = total.combine(keep=0.0, scale=1.0)
    assert (total.weight, total.count) == (2.0, 1)
    for name in GOOD:
        np.testing.assert_array_equal(after[name].numpy(), 2.0 * GOOD[name])


def test_a_model_whose_bytes_are_cut_is_refused() -> None:
    whole = Array(np.ones(3, np.float32))
    cut = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data[:-1])
    with pytest.raises(Refused, match="'w'"):
        WeightedSum(record(w=np.zeros(3, np.float32))).add(ArrayRecord({"w": cut}), 1.0)


def test_large_finite_values_are_not_taken_for_infinite_ones() -> None:
    huge = np.full(100, 1e38, np.float32)  # their sum overflows float32
    total = WeightedSum(record(w=huge))
    total.add(record(w=huge), 0.5)
    np.testing.assert_array_equal(total.combine(keep=0.0, scale=2.0)["w"].numpy(), huge)


def test_the_mean_update_of_a_hundred_thousand_clients_is_as_exact_as_float32_can_say_it() -> None:
    rng = np.random.default_rng(0)
    sent = rng.normal(size=50).astype(np.float32)
    drawn = [(sent * (1 + 0.01 * rng.normal(1.0, 0.3, 50))).astype(np.float32) for _ in range(100)]
    weights = rng.integers(1, 500, 100)
    total = WeightedSum(record(w=sent))
    checked = [total.check(record(w=model)) for model in drawn]
    for k in range(100_000):
        total.add_checked(checked[k % 100], float(weights[k % 100]))
    update = total.combine(keep=0.0, scale=1 / total.weight)["w"].numpy().astype(np.float64) - sent
    exact = np.average(np.stack(drawn).astype(np.float64), axis=0, weights=weights) - sent
    assert np.linalg.norm(update - exact) / np.linalg.norm(exact) < 3e-6  # 2.6e-6: float32 models 1 % apart


def test_clients_that_change_nothing_leave_the_model_equal_to_the_bit() -> None:
    sent = models(5, 1, 1000)[0]
    total = WeightedSum(record(w=sent))
    for weight in np.random.default_rng(5).uniform(0.01, 30, 200):
        total.add(record(w=sent), weight)
    np.testing.assert_array_equal(total.combine(keep=0.0, scale=1 / total.weight)["w"].numpy(), sent)


def test_sums_of_many_models_are_rescaled_merged_and_mixed_as_the_formula_says() -> None:
    rng = np.random.default_rng(3)
    sent, drawn = models(3, 1, 60)[0], models(4, 210, 60)
    weights = rng.uniform(0.1, 9, 210)
    one, two = WeightedSum(record(w=sent)), WeightedSum(record(w=sent))
    for k in range(200):
        one.add(record(w=drawn[k]), weights[k])
        if k == 149:
            one.rescale(0.125)
    for k in range(200, 210):
        two.add(record(w=drawn[k]), weights[k])
    one.merge(two, 3.0)
    counted = weights * np.where(np.arange(210) < 150, 0.125, np.where(np.arange(210) < 200, 1.0, 3.0))
    assert (one.count, one.weight) == (210, pytest.approx(counted.sum(), rel=1e-12))
    expected = 0.3 * sent.astype(np.float64) + 0.7 / counted.sum() * (counted @ np.stack(drawn).astype(np.float64))
    found = one.combine(keep=0.3, scale=0.7 / one.weight)["w"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_sum_of_no_models_is_the_model_that_was_sent() -> None:
    sent = np.array([1.0, -2.0], np.float32)
    np.testing.assert_array_equal(WeightedSum(record(w=sent)).combine(keep=1.0, scale=0.0)["w"].numpy(), sent)
