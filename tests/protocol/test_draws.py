"""Every draw is a pure function, and batches cover the data."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedappeal.protocol.draws import DRAWN_AT_ONCE, Minibatches, draw_seed, generator

small = st.integers(1, 40)


def test_a_seed_is_the_sha256_of_its_four_parts() -> None:
    # printf '3\x1fbatches\x1fanna\x1f5' | sha256sum, first eight bytes, little-endian, without the lowest bit
    assert draw_seed(3, "batches", client="anna", server_round=5) == EXPECTED


EXPECTED = int.from_bytes(bytes.fromhex("410a8f4e3a84c30e"), "little") >> 1


@given(st.integers(0, 2**40), st.text(max_size=8), st.text(max_size=8), st.integers(0, 10**6))
def test_seeds_fit_both_generators(seed: int, purpose: str, client: str, server_round: int) -> None:
    assert 0 <= draw_seed(seed, purpose, client=client, server_round=server_round) < 2**63


def test_each_part_of_a_draw_counts() -> None:
    draws = [
        (0, "batches", "a", 1),
        (1, "batches", "a", 1),
        (0, "noise", "a", 1),
        (0, "batches", "b", 1),
        (0, "batches", "a", 2),
    ]
    assert len({draw_seed(s, p, client=c, server_round=r) for s, p, c, r in draws}) == len(draws)


def test_another_process_draws_the_same() -> None:
    code = (
        "import numpy as np; from fedappeal.protocol.draws import Minibatches, generator;"
        "print(np.asarray(Minibatches(3, 'anna', 5, 11, 4, 3)).tolist(), generator(3, 'sampling').integers(10**9))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    batches = np.asarray(Minibatches(3, "anna", 5, 11, 4, 3)).tolist()
    assert other == f"{batches} {generator(3, 'sampling').integers(10**9)}"


@given(num_examples=small, steps=st.integers(0, 30), batch_size=small, client=st.text(max_size=3))
def test_every_epoch_covers_every_example_once(num_examples: int, steps: int, batch_size: int, client: str) -> None:
    batches = np.asarray(Minibatches(0, client, 1, num_examples, steps, batch_size))
    assert batches.dtype == np.int64
    assert batches.shape == (steps, min(batch_size, num_examples))
    stream = batches.reshape(-1)
    whole = len(stream) // num_examples
    for epoch in range(whole):
        assert sorted(stream[epoch * num_examples : (epoch + 1) * num_examples]) == list(range(num_examples))
    rest = stream[whole * num_examples :]
    assert len(set(rest.tolist())) == len(rest)


def test_the_last_batch_of_an_epoch_is_filled_from_the_next() -> None:
    batches = np.asarray(Minibatches(0, "a", 1, num_examples=5, steps=3, batch_size=4)).reshape(-1)
    assert sorted(batches[:5]) == sorted(batches[5:10]) == [0, 1, 2, 3, 4]
    assert len(batches) == 12


def test_more_steps_extend_a_draw_and_rounds_differ() -> None:
    few, many = (np.asarray(Minibatches(0, "a", 1, 50, steps, 8)) for steps in (2, 9))
    np.testing.assert_array_equal(many[:2], few)
    assert not np.array_equal(many, np.asarray(Minibatches(0, "a", 2, 50, 9, 8)))
    assert not np.array_equal(many, np.asarray(Minibatches(0, "a", 1, 50, 9, 8, "tuning")))


def all_at_once(num_examples: int, steps: int, batch_size: int) -> NDArray[np.int64]:
    """The minibatches as one stream of whole epochs, cut into rows."""
    size = min(batch_size, num_examples)
    rng = generator(7, "batches", client="a", server_round=2)
    order = [rng.permutation(num_examples) for _ in range(-(-steps * size // num_examples))]
    return np.concatenate([*order, np.empty(0, np.int64)])[: steps * size].reshape(steps, size)


@pytest.mark.parametrize("most", [1, 7, 64, DRAWN_AT_ONCE])
@pytest.mark.parametrize(("num_examples", "steps", "batch_size"), [(11, 30, 4), (5, 9, 8), (64, 40, 1), (3, 0, 2)])
def test_drawn_as_needed_they_are_the_same(most: int, num_examples: int, steps: int, batch_size: int) -> None:
    batches = Minibatches(7, "a", 2, num_examples, steps, batch_size)
    expected = all_at_once(num_examples, steps, batch_size)
    blocks = list(batches.blocks(most))
    assert all(block.size <= max(most, min(batch_size, num_examples)) for block in blocks)
    np.testing.assert_array_equal(np.concatenate([*blocks, expected[:0]]), expected)
    np.testing.assert_array_equal(list(batches.rows()) or expected, expected)
    np.testing.assert_array_equal(np.asarray(batches), expected)
    assert batches.shape == expected.shape
    assert len(batches) == steps
    assert np.asarray(batches).dtype == np.int64


def test_steps_without_end_are_begun_at_once() -> None:
    rows = Minibatches(7, "a", 2, 50, 10**12, 10**12).rows()
    np.testing.assert_array_equal([next(rows) for _ in range(3)], all_at_once(50, 3, 50))
