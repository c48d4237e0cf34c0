"""Which clients a round asks, and in which order."""

import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from strategies.rounds.exchange.members import sampling_order, waves

names = st.lists(st.text(min_size=1, max_size=4), unique=True, max_size=20)


@given(names, st.integers(0, 100), st.integers(1, 100), st.randoms())
def test_an_order_is_a_pure_permutation_of_the_sorted_ids(ids: list[str], seed: int, server_round: int, rnd) -> None:  # type: ignore[no-untyped-def]
    order = sampling_order(seed, server_round, ids)
    assert sorted(order) == sorted(ids)
    shuffled = list(ids)
    rnd.shuffle(shuffled)
    assert sampling_order(seed, server_round, shuffled) == order


def test_another_process_draws_the_same_order() -> None:
    ids = [f"client-{k}" for k in range(20)]
    code = "import sys; from strategies.rounds.exchange.members import *; print(sampling_order(3, 7, sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *ids], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sampling_order(3, 7, ids))


def test_every_client_comes_first_about_equally_often() -> None:
    first = Counter(sampling_order(0, r, ["a", "b", "c", "d"])[0] for r in range(4000))
    assert all(900 < first[name] < 1100 for name in "abcd")  # 1000 each, standard deviation 27
    assert sampling_order(0, 1, list("abcdefgh")) != sampling_order(1, 1, list("abcdefgh"))


def test_waves_double() -> None:
    assert [list(w) for w in waves(range(15), 2)] == [[0, 1], [2, 3, 4, 5], list(range(6, 14)), [14]]
    assert list(waves([], 3)) == []


@given(st.integers(0, 200), st.integers(1, 50))
def test_waves_leave_nobody_out(count: int, size: int) -> None:
    cut = list(waves(range(count), size))
    assert [k for wave in cut for k in wave] == list(range(count))
    assert all(len(wave) == size * 2**k for k, wave in enumerate(cut[:-1]))
