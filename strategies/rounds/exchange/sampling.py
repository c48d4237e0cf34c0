"""The order in which a round asks its clients.

Each round has one random order of the sorted client-ids, a pure function of (seed, round). The first wave asks
the first m clients of that order; while fewer than m have joined or may still join, each next wave asks twice as
many as the last.
The first m joiners *in that order* count, so the outcome does not depend on which reply comes first.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from fedappeal.protocol.draws import generator

T = TypeVar("T")


def sampling_order(seed: int, server_round: int, client_ids: Sequence[str]) -> list[str]:
    """Return the order in which a round asks its clients: a seeded permutation."""
    ids = sorted(client_ids)
    order = generator(seed, "sampling", server_round=server_round).permutation(len(ids))
    return [ids[i] for i in order]


def waves(order: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut an order into waves of ``size``, ``2 size``, ``4 size``, ... clients."""
    start = 0
    while start < len(order):
        yield order[start : start + size]
        start, size = start + size, 2 * size
