"""A client's train and test rows, and the clients with flipped labels, y -> C-1-y."""

from fedappeal.protocol.draws import generator
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks.arrays import Rows


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
