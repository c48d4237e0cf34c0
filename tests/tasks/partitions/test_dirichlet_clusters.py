"""The partition `dirichlet-clusters`: a Dirichlet draw of labels for each cluster, its clients alike."""

import numpy as np
import pytest

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.partitions.assign import assign, check

LABELS = np.repeat(np.arange(4), 5000)


def settings(**changed: object) -> TaskSettings:
    given = {"clients": 8, "unseen-clients": 4, "partition": "dirichlet-clusters", "clusters": 3, "min-examples": 200}
    return TaskSettings.parse({**given, **changed})


def shares(rows: np.ndarray) -> np.ndarray:
    return np.bincount(LABELS[rows], minlength=4) / len(rows)


def test_clients_of_a_cluster_are_alike_and_clusters_are_not() -> None:
    dealt = assign(settings(), LABELS, 4)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(20_000)), "each row is dealt once"
    assert min(map(len, dealt)) >= 200
    mixtures = np.array([shares(rows) for rows in dealt])
    distance = np.abs(mixtures[:, None] - mixtures[None]).sum(axis=2) / 2
    near = distance < 0.15
    assert (near.sum(axis=1) == 4).all(), "12 clients in 3 clusters: each is like four, itself among them"
    assert distance[~near].min() > 0.2
    # The unseen clients come from the same clusters.
    assert all(near[k, :8].any() for k in range(8, 12))


def test_it_is_a_function_of_the_seed() -> None:
    first, again, other = (assign(settings(seed=seed), LABELS, 4) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, other, strict=True))


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(ConfigError, match="clusters = 13 is not allowed: at most the 12 clients"):
        check(settings(clusters=13), 20_000, 4)
    with pytest.raises(ConfigError, match=r"with dirichlet-alpha = 0\.01 and min-examples = 1500"):
        assign(settings(**{"dirichlet-alpha": 0.01, "min-examples": 1500}), LABELS, 4)
