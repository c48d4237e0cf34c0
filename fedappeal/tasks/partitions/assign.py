"""Deal a data set out to clients.

The result is a pure function of the settings, their data seed and the labels. The data set is dealt out over seen and
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
import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedappeal.protocol.draws import draw_seed, generator
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.settings.model import local_path
from fedappeal.system.files import read_safetensors, write_safetensors
from fedappeal.system.locks import changing
from fedappeal.system.packages import require
from fedappeal.system.versions import FEDAPPEAL, version_of
from fedappeal.tasks.examples import Labels, Rows

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
    how, total, seed = partition_of(settings), total_clients(settings), settings.resolved_data_seed
    order = generator(seed, "partition-order").permutation(len(labels))
    if how in ("clusters", "dirichlet-clusters"):
        dealt = _clusters(settings, order, labels, num_classes)
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
    """Return the clients' rows, dealt to clusters first, then within each.

    By groups of labels or by Dirichlet draws.
    """
    total, fewest = total_clients(settings), fewest_examples(settings)
    by_labels = partition_of(settings) == "clusters"
    clusters = np.arange(total) % settings.clusters
    cluster_of = generator(settings.resolved_data_seed, "cluster-of-client").permutation(clusters)
    if by_labels:
        width = num_classes // settings.clusters
        rows_of = [order[labels[order] // width == cluster] for cluster in range(settings.clusters)]
    else:
        alpha, least = settings.dirichlet_alpha, int(np.bincount(cluster_of).max()) * fewest
        rows_of = _dirichlet(settings, order, labels, settings.clusters, alpha, "partition", least)
    dealt: list[Rows] = [np.empty(0, dtype=np.int64)] * total
    for cluster, rows in enumerate(rows_of):
        members, purpose = np.flatnonzero(cluster_of == cluster), f"partition-cluster-{cluster}"
        if len(members) * fewest > len(rows):
            raise ConfigError(
                f"{clients_setting(settings)} is not allowed: {len(members)} of them share a cluster of "
                f"{len(rows)} examples, enough for {len(rows) // fewest} at {fewest_setting(settings)}"
            )
        if not by_labels:
            parts = _iid(generator(settings.resolved_data_seed, purpose).permutation(rows), len(members))
        elif settings.cluster_alpha > 0:
            parts = _dirichlet(settings, rows, labels, len(members), settings.cluster_alpha, purpose)
        else:
            parts = _iid(rows, len(members))
        for member, part in zip(members, parts, strict=True):
            dealt[member] = part
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
        seed = draw_seed(settings.resolved_data_seed, purpose, server_round=attempt)
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
    require(*_NEEDED)
    from flwr_datasets import partitioner

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


def kept_rows(fingerprint: str, labels: Labels, draw: Callable[[], list[Rows]]) -> list[Rows]:
    """Return each client's rows, from an earlier draw or drawn and kept now.

    The library that draws them takes seconds to import. Rows are kept in ``$XDG_CACHE_HOME/fedappeal``
    (``~/.cache/fedappeal``). A partition is a pure function, and its file's name is a hash of all that it depends on,
    so it is never out of date; the folder can be deleted at any time.

    Args:
        fingerprint: the task's, which covers its partition settings.
        labels: the data set's labels, which a partition depends on too.
        draw: draws the partition; its exceptions are passed on.
    """
    path = _path(fingerprint, labels)
    if (present := _read(path)) is not None:
        return present
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    with changing(path.parent):  # of the clients that start together one draws, and the others wait
        if (present := _read(path)) is not None:
            return present
        rows = draw()
        flat, sizes = np.concatenate(rows), np.array([len(r) for r in rows], dtype=np.int64)
        # A device without a writable home draws again at its next start.
        with contextlib.suppress(OSError):
            write_safetensors(path, {"rows": flat, "sizes": sizes}, _KIND)
        return rows


_KIND = {"partition": True}
"""What a file of kept rows says of itself; its checksum is that of all our safetensors."""


def _read(path: Path) -> list[Rows] | None:
    """Return the kept rows, or None where the file is missing or damaged."""
    try:
        arrays, values = read_safetensors(path)
        if values == _KIND:
            return list(np.split(arrays["rows"], np.cumsum(arrays["sizes"])[:-1]))
    except (KeyError, TypeError, ValueError):
        pass
    return None


def _path(fingerprint: str, labels: Labels) -> Path:
    digest = hashlib.blake2b(labels.tobytes(), digest_size=8)
    digest.update(f"{fingerprint} {FEDAPPEAL} {version_of('flwr-datasets')}".encode())
    cache = local_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "XDG_CACHE_HOME")
    return cache / "fedappeal" / f"partition-{digest.hexdigest()}.safetensors"


AUTO_PARTITION = "dirichlet"
"""What ``partition = auto`` stands for."""

_NEEDED = ("partitions need flwr-datasets", "data", "flwr_datasets")


def check(settings: TaskSettings, num_examples: int, num_classes: int) -> None:
    """Check a partition as far as possible without the data.

    Args:
        settings: the partition's settings.
        num_examples: size of the data set.
        num_classes: number of labels C.

    Raises:
        ConfigError: no flwr-datasets, or the data set is too small for the clients, shards or clusters.
    """
    how = partition_of(settings)
    if how == "natural":
        raise ConfigError(
            f"partition = 'natural' is not allowed for task = {settings.task!r}: its data set does not say which "
            f"client holds what; iid, dirichlet, shards, clusters, dirichlet-clusters"
        )
    require(*_NEEDED)
    total, least = total_clients(settings), fewest_examples(settings)
    if total * least > num_examples:
        raise ConfigError(
            f"{clients_setting(settings)} is not allowed: the data set's {num_examples} examples are enough for "
            f"{num_examples // least} at {fewest_setting(settings)}"
        )
    if how == "shards":
        shards = settings.shards_per_client
        dealt = shards * (num_examples // (total * shards))
        if dealt < least:
            raise ConfigError(
                f"shards-per-client = {shards} is not allowed: {num_examples} examples in "
                f"{total} * {shards} equal shards make {dealt} examples a client, "
                f"fewer than {fewest_setting(settings)}"
            )
    if how == "dirichlet-clusters" and settings.clusters > total:
        raise ConfigError(f"clusters = {settings.clusters} is not allowed: at most the {total} clients")
    if how == "clusters":
        possible = [c for c in range(1, num_classes + 1) if num_classes % c == 0 and c <= total]
        if settings.clusters not in possible:
            raise ConfigError(
                f"clusters = {settings.clusters} is not allowed: choose from {', '.join(map(str, possible))}, "
                f"which divide the {num_classes} labels and are no more than the {total} clients"
            )


def check_enough(settings: TaskSettings, examples: int) -> None:
    """Check that a client's examples can be split.

    Raises:
        ConfigError: fewer than ``min-examples``, or than two.
    """
    if examples < fewest_examples(settings):
        raise ConfigError(f"{examples} examples are fewer than {fewest_setting(settings)}")


def check_client(settings: TaskSettings, client: int) -> None:
    """Check a client's number.

    Raises:
        ConfigError: there is no such client.
    """
    if not 0 <= client < total_clients(settings):
        raise ConfigError(
            f"client = {client} is not allowed: 0 to {total_clients(settings) - 1} "
            f"(clients = {settings.clients}, unseen-clients = {settings.unseen_clients})"
        )


def partition_of(settings: TaskSettings) -> str:
    """Return the data set's partition, with ``auto`` resolved."""
    return AUTO_PARTITION if settings.partition == "auto" else settings.partition


def total_clients(settings: TaskSettings) -> int:
    """Return the number of seen and unseen clients."""
    return settings.clients + settings.unseen_clients


def fewest_examples(settings: TaskSettings) -> int:
    """Return the fewest rows of a client: two at least, to train and to test."""
    return max(settings.min_examples, 2)


def fewest_setting(settings: TaskSettings) -> str:
    """Return the setting behind `fewest_examples`, for messages."""
    at_least = "" if settings.min_examples >= 2 else " (2 at least, to train on and to test with)"
    return f"min-examples = {settings.min_examples}{at_least}"


def clients_setting(settings: TaskSettings) -> str:
    """Return the settings behind `total_clients`, for messages."""
    unseen = f" + unseen-clients = {settings.unseen_clients}" if settings.unseen_clients else ""
    return f"clients = {settings.clients}{unseen}"


def split_rows(settings: TaskSettings, client: int | str, rows: Rows) -> tuple[Rows, Rows]:
    """Split a client's rows at random into train and test rows, at least one each.

    The share ``train-share`` goes to train. Of these rows the first ``max-train-examples`` are kept; the test rows
    are the same with that limit and without.

    Args:
        settings: the partition's settings; their data seed, ``train-share`` and ``max-train-examples`` count.
        client: the client's number in its task; of a client with data of its own the client-id.
        rows: the client's rows, at least two.
    """
    shuffled = generator(settings.resolved_data_seed, "split", client=str(client)).permutation(rows)
    train, test = sizes(settings, len(rows))
    return shuffled[:train], shuffled[len(rows) - test :]


def sizes(settings: TaskSettings, rows: int) -> tuple[int, int]:
    """Return the numbers of a client's train and test rows by `split_rows`."""
    cut = min(max(round(settings.train_share * rows), 1), rows - 1)
    return min(cut, settings.max_train_examples or cut), rows - cut


def flipped_clients(settings: TaskSettings) -> frozenset[int]:
    """Return the clients with flipped labels: ``flip-share`` of the seen and of the unseen."""
    chosen: set[int] = set()
    groups = (("flip-seen", 0, settings.clients), ("flip-unseen", settings.clients, settings.unseen_clients))
    for purpose, first, count in groups:
        size = round(settings.flip_share * count)
        draw = generator(settings.resolved_data_seed, purpose).choice(count, size=size, replace=False)
        chosen.update(first + int(k) for k in draw)
    return frozenset(chosen)


def draw_users(settings: TaskSettings, counts: Mapping[str, int], what: str, who: str = "users") -> list[str]:
    """Return one drawn user a client, among those with enough examples.

    Drawn from the data seed.

    Args:
        settings: how many clients there are, and how many examples are enough.
        counts: number of examples by user.
        what: what the examples are called, for messages.
        who: what the users are called.

    Raises:
        ConfigError: too few users have enough.
    """
    least, total = fewest_examples(settings), total_clients(settings)
    enough = sorted(user for user, count in counts.items() if count >= least)
    if len(enough) < total:
        raise ConfigError(
            f"{clients_setting(settings)} is not allowed: "
            f"{len(enough)} {who} have min-examples = {least} {what} or more"
        )
    order = generator(settings.resolved_data_seed, "partition-users").permutation(len(enough))
    return [enough[k] for k in order[:total]]
