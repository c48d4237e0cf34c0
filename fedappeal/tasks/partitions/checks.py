"""Who holds what: checks before a partition is drawn, a client's split, flipped labels (y -> C-1-y), and users."""

from collections.abc import Mapping
from importlib.util import find_spec

from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.task import Rows

AUTO_PARTITION = "dirichlet"
"""What ``partition = auto`` stands for."""

MISSING_PACKAGE = "partitions need flwr-datasets: pip install 'fedappeal[data]'"


def check(settings: TaskSettings, num_examples: int, num_classes: int) -> None:
    """Check what can be known of a partition without reading the data.

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
    if find_spec("flwr_datasets") is None:
        raise ConfigError(MISSING_PACKAGE)
    total, least = total_clients(settings), fewest_examples(settings)
    if total * least > num_examples:
        raise ConfigError(
            f"{clients_setting(settings)} is not allowed: the data set's {num_examples} examples are enough for "
            f"{num_examples // least} at {fewest_setting(settings)}"
        )
    if how == "shards":
        shards = settings.shards_per_client
        held = shards * (num_examples // (total * shards))
        if held < least:
            raise ConfigError(
                f"shards-per-client = {shards} is not allowed: {num_examples} examples in "
                f"{total} * {shards} equal shards make {held} examples a client, "
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
    """Return how the data set is dealt out: the setting, or what ``auto`` stands for."""
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


def split(settings: TaskSettings, client: int | str, rows: Rows) -> tuple[Rows, Rows]:
    """Split a client's rows at random into train and test rows, at least one each.

    The share ``train-share`` goes to train. Of these rows the first ``max-train-examples`` are kept; the test rows
    are the same with that limit and without.

    Args:
        settings: the partition's settings; their seed, ``train-share`` and ``max-train-examples`` count.
        client: the client's number in its task; of a client with data of its own the client-id.
        rows: the client's rows, at least two.
    """
    shuffled = generator(settings.seed, "split", client=str(client)).permutation(rows)
    train, test = sizes(settings, len(rows))
    return shuffled[:train], shuffled[len(rows) - test :]


def sizes(settings: TaskSettings, rows: int) -> tuple[int, int]:
    """Return how many of a client's rows `split` gives to train and test."""
    cut = min(max(round(settings.train_share * rows), 1), rows - 1)
    return min(cut, settings.max_train_examples or cut), rows - cut


def flipped(settings: TaskSettings) -> frozenset[int]:
    """Return the clients with flipped labels: ``flip-share`` of the seen and of the unseen."""
    chosen: set[int] = set()
    groups = (("flip-seen", 0, settings.clients), ("flip-unseen", settings.clients, settings.unseen_clients))
    for purpose, first, count in groups:
        draw = generator(settings.seed, purpose).choice(count, size=round(settings.flip_share * count), replace=False)
        chosen.update(first + int(k) for k in draw)
    return frozenset(chosen)


def draw_users(settings: TaskSettings, held: Mapping[str, int], what: str, who: str = "users") -> list[str]:
    """Return one user a client, drawn from the seed among the users with enough examples.

    Args:
        settings: how many clients there are, and how many examples are enough.
        held: number of examples by user.
        what: what the examples are called, for messages.
        who: what the users are called.

    Raises:
        ConfigError: too few users have enough.
    """
    least, total = fewest_examples(settings), total_clients(settings)
    enough = sorted(user for user, count in held.items() if count >= least)
    if len(enough) < total:
        raise ConfigError(
            f"{clients_setting(settings)} is not allowed: "
            f"{len(enough)} {who} have min-examples = {least} {what} or more"
        )
    order = generator(settings.seed, "partition-users").permutation(len(enough))
    return [enough[k] for k in order[:total]]
