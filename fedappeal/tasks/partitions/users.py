"""Clients that are users of a data set: which of them take part."""

from collections.abc import Mapping

from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.partitions.checks import clients_setting, fewest_examples, total_clients


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
