"""Dealing a data set out: which rows each client gets, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.partitions.assign import _iid, assign, split_rows

CLASSES = 10
LABELS = np.random.default_rng(0).permutation(np.arange(2000) % CLASSES).astype(np.int64)


def spread(*, min_examples: int = 2, **values: object) -> TaskSettings:
    return TaskSettings.model_validate({"min_examples": min_examples, **values})


def dealt(**values: object) -> list[np.ndarray]:
    return assign(spread(**values), LABELS, CLASSES)


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def label_entropy(rows: list[np.ndarray]) -> float:
    """Mean over clients of the entropy of their labels, in nats; ln 10 = 2.30 where labels are even."""
    shares = [np.bincount(LABELS[r], minlength=CLASSES) / len(r) for r in rows]
    return float(np.mean([-(p[p > 0] * np.log(p[p > 0])).sum() for p in shares]))


@given(
    size=st.integers(60, 300),
    clients=st.integers(1, 6),
    unseen=st.integers(0, 3),
    how=st.sampled_from(["iid", "dirichlet", "shards", "clusters"]),
    alpha=st.sampled_from([0.0, 1.0, 10.0]),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=40, deadline=None)
def test_no_row_is_dealt_twice_and_none_is_lost(
    size: int, clients: int, unseen: int, how: str, alpha: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, 4, size)
    chosen = spread(
        clients=clients,
        unseen_clients=unseen,
        partition=how,
        clusters=2 if clients + unseen > 1 else 1,
        cluster_alpha=alpha,
        dirichlet_alpha=alpha + 1,
        shards_per_client=3,
        seed=seed,
    )
    rows = assign(chosen, labels, 4)
    total = clients + unseen
    every = np.concatenate(rows)
    assert len(rows) == total
    assert len(np.unique(every)) == len(every)
    left_over = size - 3 * total * (size // (3 * total)) if how == "shards" else 0
    assert len(every) == size - left_over
    assert set(every) <= set(range(size))
    for client, held in enumerate(rows):
        train, test = split_rows(chosen, client, held)
        assert len(train) >= 1
        assert len(test) >= 1
        assert sorted(np.concatenate([train, test])) == sorted(held)


@pytest.mark.parametrize("how", ["iid", "dirichlet", "shards", "clusters"])
def test_a_seed_decides_the_partition(how: str) -> None:
    assert same(dealt(partition=how, seed=1), dealt(partition=how, seed=1))
    assert not same(dealt(partition=how, seed=1), dealt(partition=how, seed=2))


def test_iid_shares_are_equal() -> None:
    assert [len(r) for r in dealt(partition="iid", clients=6, unseen_clients=2)] == [250] * 8


def test_alpha_controls_the_skew() -> None:
    even, mixed, skewed = (label_entropy(dealt(dirichlet_alpha=a)) for a in (100.0, 0.5, 0.05))
    assert even > 2.25
    assert 1.2 < mixed < 2.0
    assert skewed < 1.0


def test_two_shards_hold_few_labels() -> None:
    # 200 rows a label and shards of 100: a shard holds one label, a client at most two.
    rows = dealt(partition="shards", clients=10, shards_per_client=2)
    assert [len(r) for r in rows] == [200] * 10
    assert all(len(set(LABELS[r])) <= 2 for r in rows)
    assert all((np.bincount(LABELS[r], minlength=CLASSES) % 100 == 0).all() for r in rows)


def test_clusters_do_not_share_labels() -> None:
    rows = dealt(partition="clusters", clients=20, clusters=5)
    groups = [frozenset(LABELS[r].tolist()) for r in rows]
    # 2 labels a cluster (MaxFL, appendix D.1), 20 clients over 5 clusters: 4 each, 400 rows over 4 clients.
    assert {g: groups.count(g) for g in groups} == {frozenset({2 * c, 2 * c + 1}): 4 for c in range(5)}
    assert [len(r) for r in rows] == [100] * 20
    assert groups != [
        frozenset(LABELS[r].tolist()) for r in dealt(partition="clusters", clients=20, clusters=5, seed=1)
    ]


def test_dirichlet_inside_a_cluster_skews_its_clients_only() -> None:
    rows = dealt(partition="clusters", clients=10, clusters=5, cluster_alpha=1.0)
    groups = [set(LABELS[r].tolist()) for r in rows]
    assert all(max(g) // 2 == min(g) // 2 for g in groups)
    assert len({len(r) for r in rows}) > 1


def test_every_client_holds_min_examples() -> None:
    assert min(len(r) for r in dealt(clients=20, dirichlet_alpha=0.3, min_examples=25)) >= 25


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"clients": 150, "unseen_clients": 51, "min_examples": 10},
            r"clients = 150 \+ unseen-clients = 51 .* 200 at",
        ),
        ({"clients": 1001, "min_examples": 1}, r"clients = 1001 is not allowed: .* 1000 at min-examples = 1 \(2 at"),
        ({"partition": "clusters", "clusters": 3}, "clusters = 3 is not allowed: choose from 1, 2, 5, 10"),
        ({"partition": "clusters", "clusters": 5, "clients": 4}, "clusters = 5 .* choose from 1, 2, which"),
        ({"partition": "shards", "shards_per_client": 150}, "shards-per-client = 150 .* min-examples = 160"),
        ({"dirichlet_alpha": 0.01, "clients": 12}, "clients = 12 is not allowed with dirichlet-alpha = 0.01"),
        (
            {"partition": "clusters", "clusters": 5, "clients": 15, "cluster_alpha": 0.01, "min_examples": 100},
            "cluster-alpha = 0.01 and min-examples = 100",
        ),
        (
            {"partition": "clusters", "clusters": 5, "clients": 11},
            "3 of them share a cluster of 400 examples, .* 2 at",
        ),
    ],
)
def test_the_impossible_is_refused_in_one_line(values: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        dealt(**{"min_examples": 160, **values})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("size", "parts"), [(100, 7), (60, 60), (64, 1), (101, 4)])
def test_even_shares_are_those_of_flowers_partitioner(size: int, parts: int) -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import IidPartitioner

    rows = np.random.default_rng(size).permutation(size)
    partitioner = IidPartitioner(parts)
    partitioner.dataset = Dataset.from_dict({"row": rows})
    theirs = [np.array(partitioner.load_partition(k)["row"]) for k in range(parts)]
    assert same(_iid(rows, parts), theirs)
