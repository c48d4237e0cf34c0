"""A client's train and test rows, and whose labels are flipped."""

import numpy as np

from fedappeal.settings.config import TaskSettings
from fedappeal.tasks.partitions.assign import flipped_clients, split_rows


def spread(**values: object) -> TaskSettings:
    return TaskSettings.model_validate({"min_examples": 2, **values})


def test_the_train_share_is_exact() -> None:
    train, test = split_rows(spread(train_share=0.6), 3, np.arange(100, 200))
    assert (len(train), len(test)) == (60, 40)
    other, _ = split_rows(spread(train_share=0.6), 4, np.arange(100, 200))
    assert not np.array_equal(train, other)
    tiny, rest = split_rows(spread(train_share=0.99), 0, np.arange(2))
    assert (len(tiny), len(rest)) == (1, 1)


def test_a_limit_of_training_examples_leaves_the_test_rows_alone() -> None:
    rows = np.arange(100, 200)
    train, test = split_rows(spread(), 3, rows)
    assert (len(train), len(test)) == (60, 40)
    for most, kept in ((1, 1), (25, 25), (60, 60), (90, 60)):
        fewer, same_test = split_rows(spread(max_train_examples=most), 3, rows)
        assert np.array_equal(fewer, train[:kept])
        assert np.array_equal(same_test, test)


def test_flips_are_exact_among_seen_and_unseen() -> None:
    chosen = spread(clients=10, unseen_clients=20, flip_share=0.3)
    found = flipped_clients(chosen)
    assert sum(k < 10 for k in found) == 3
    assert sum(10 <= k < 30 for k in found) == 6
    assert len(found) == 9
    assert found != flipped_clients(spread(clients=10, unseen_clients=20, flip_share=0.3, seed=1))
    assert flipped_clients(spread(clients=10)) == frozenset()
    assert flipped_clients(spread(clients=10, flip_share=1.0)) == frozenset(range(10))
