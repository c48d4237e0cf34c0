"""Deal a data set out to clients.

The result is a pure function of the settings, their seed and the labels. The data set is dealt out over seen and
unseen clients together, so that both come from the same distribution. Flower's partitioners deal by label
(``flwr-datasets``, on a table that holds only row number and label):

- ``iid``: equal shares of a random order.
- ``dirichlet``: each label's rows are dealt out in proportions drawn from Dirichlet(alpha).
- ``shards``: sorted by label, cut into equal shards, ``shards-per-client`` each (McMahan et al. 2017,
  section 3). Shards are equal: fewer than clients * shards-per-client rows are left over, dealt to no client.
- ``clusters``: MaxFL, appendix D.1. Labels 0..C-1 are cut into ``clusters`` groups of consecutive labels and
  each client belongs to one at random (no cluster has two clients more than another). The rows with its
  labels are dealt out evenly inside a cluster, or by Dirichlet(``cluster-alpha``).
- ``dirichlet-clusters``: another reading of the same appendix. Each label's rows are dealt out to ``clusters``
  clusters by Dirichlet(alpha), and then evenly to a cluster's clients, drawn as above.
"""

import contextlib
import warnings
from typing import Any

import numpy as np

from fedappeal.protocol.draws import draw_seed, generator
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.arrays import Labels, Rows
from fedappeal.tasks.partitions.checks import (
    MISSING_PACKAGE,
    check,
    clients_setting,
    fewest_examples,
    fewest_setting,
    partition_of,
    total_clients,
)

DIRICHLET_ATTEMPTS = 4
"""Starts of Flower's partitioner, which draws up to 11 times until every client holds `min-examples`."""


def assign(settings: TaskSettings, labels: Labels, num_classes: int) -> list[Rows]:
    """Deal the rows out.

    Args:
        settings: the partition's settings.
        labels: labels in 0..C-1, shape ``(n,)``.
        num_classes: number of labels C.

    Returns:
        Each client's rows in ascending order, seen clients first. No row is dealt twice, and each once, but
        for the remainder of ``shards``.

    Raises:
        ConfigError: as `check`, or a client would hold fewer than ``min-examples``.
    """
    check(settings, len(labels), num_classes)
    how, total, seed = partition_of(settings), total_clients(settings), settings.seed
    order = generator(seed, "partition-order").permutation(len(labels))
    if how == "clusters":
        dealt = _clusters(settings, order, labels, num_classes)
    elif how == "dirichlet-clusters":
        dealt = _dirichlet_clusters(settings, order, labels)
    elif how == "dirichlet":
        dealt = _dirichlet(settings, order, labels, total, settings.dirichlet_alpha, "partition")
    elif how == "shards":
        shards, draw = settings.shards_per_client, draw_seed(seed, "partition")
        partitioner = _flower().ShardPartitioner(total, "label", num_shards_per_partition=shards, seed=draw)
        dealt = _deal(partitioner, order, labels)
    else:
        dealt = _iid(order, total)
    smallest = min(len(rows) for rows in dealt)
    if smallest < fewest_examples(settings):
        raise ConfigError(
            f"{fewest_setting(settings)} is not allowed: with {clients_setting(settings)} and "
            f"partition = {how!r} a client would hold {smallest}"
        )
    return [np.sort(rows) for rows in dealt]


def _clusters(settings: TaskSettings, order: Rows, labels: Labels, num_classes: int) -> list[Rows]:
    total, width = total_clients(settings), num_classes // settings.clusters
    cluster_of = _cluster_of_clients(settings)
    dealt: list[Rows] = [np.empty(0, dtype=np.int64)] * total
    for cluster in range(settings.clusters):
        members = np.flatnonzero(cluster_of == cluster)
        rows = order[labels[order] // width == cluster]
        if len(members) * fewest_examples(settings) > len(rows):
            raise ConfigError(
                f"{clients_setting(settings)} is not allowed: {len(members)} of them share a cluster of "
                f"{len(rows)} examples, enough for "
                f"{len(rows) // fewest_examples(settings)} at {fewest_setting(settings)}"
            )
        if settings.cluster_alpha > 0:
            alpha, purpose = settings.cluster_alpha, f"partition-cluster-{cluster}"
            parts = _dirichlet(settings, rows, labels, len(members), alpha, purpose)
        else:
            parts = _iid(rows, len(members))
        for member, part in zip(members, parts, strict=True):
            dealt[member] = part
    return dealt


def _cluster_of_clients(settings: TaskSettings) -> Rows:
    return generator(settings.seed, "cluster-of-client").permutation(
        np.arange(total_clients(settings)) % settings.clusters
    )


def _dirichlet_clusters(settings: TaskSettings, order: Rows, labels: Labels) -> list[Rows]:
    """Deal the data to clusters by Dirichlet draws, then evenly to each cluster's clients."""
    cluster_of = _cluster_of_clients(settings)
    most = int(np.bincount(cluster_of).max())
    parts = _dirichlet(
        settings,
        order,
        labels,
        settings.clusters,
        settings.dirichlet_alpha,
        "partition",
        most * fewest_examples(settings),
    )
    dealt: list[Rows] = [np.empty(0, dtype=np.int64)] * len(cluster_of)
    for cluster, part in enumerate(parts):
        members = np.flatnonzero(cluster_of == cluster)
        mixed = generator(settings.seed, f"partition-cluster-{cluster}").permutation(part)
        for member, rows in zip(members, _iid(mixed, len(members)), strict=True):
            dealt[member] = rows
    return dealt


def _iid(rows: Rows, parts: int) -> list[Rows]:
    # As Flower's IidPartitioner deals, which takes most of a millisecond a part.
    return np.array_split(rows, parts)


def _dirichlet(
    settings: TaskSettings,
    rows: Rows,
    labels: Labels,
    parts: int,
    alpha: float,
    purpose: str,
    at_least: int = 0,
) -> list[Rows]:
    """Deal rows by Dirichlet draws, ``at_least`` (default: a client's fewest examples) to each part."""

    def draw(attempt: int, least: int) -> list[Rows]:
        seed = draw_seed(settings.seed, purpose, server_round=attempt)
        return _deal(_flower().DirichletPartitioner(parts, "label", alpha, least, seed=seed), rows, labels)

    for attempt in range(DIRICHLET_ATTEMPTS):
        with contextlib.suppress(ValueError):  # none of its draws gave every client enough
            return draw(attempt, at_least or fewest_examples(settings))
    smallest = min(len(part) for part in draw(0, 0))
    name = "cluster-alpha" if partition_of(settings) == "clusters" else "dirichlet-alpha"
    raise ConfigError(
        f"{clients_setting(settings)} is not allowed with {name} = {alpha:g} and "
        f"{fewest_setting(settings)}: no draw gives every client that many "
        f"(the first gives the smallest {smallest} of {len(rows)}); raise {name}, or lower the others"
    )


def _flower() -> Any:
    """Import Flower's partitioners: seconds, with all that they pull in."""
    try:
        from flwr_datasets import partitioner
    except ImportError:
        raise ConfigError(MISSING_PACKAGE) from None
    return partitioner


def _deal(partitioner: Any, rows: Rows, labels: Labels) -> list[Rows]:
    """Run one of Flower's partitioners over some rows of the data set."""
    from datasets import Dataset

    # Arrow columns: as Python lists, 70,000 rows over 100 clients would take seconds.
    partitioner.dataset = Dataset.from_dict({"row": rows, "label": labels[rows]}).with_format("arrow")
    with warnings.catch_warnings():
        # pyarrow's, about a sort inside `datasets`; Flower's, one for each Dirichlet draw that it repeats.
        warnings.simplefilter("ignore")
        count = partitioner.num_partitions
        return [partitioner.load_partition(k)[:]["row"].to_numpy().astype(np.int64) for k in range(count)]
