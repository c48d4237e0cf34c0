"""Checks before a partition is drawn: enough examples for the clients, a client's number."""

from importlib.util import find_spec

from fedappeal.settings.config import ConfigError, TaskSettings

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
