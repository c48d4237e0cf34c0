"""Settings that every strategy shares, written down once."""

import math
from typing import Literal, NotRequired, TypedDict


class Shared(TypedDict):
    """Settings that all strategies share, all by keyword, all optional.

    Attributes:
        clients_per_round: clients folded a round; None: all.
        min_available_nodes: clients to wait for before round 1.
        start_timeout: seconds to wait for them.
        round_timeout: deadline of one exchange, in seconds.
        seed: seed of the sampling.
        mandatory_rounds: rounds in which clients are asked not to opt out; None: `default_mandatory_rounds`.
        empty_pool: after a round that nobody joined, ``ask-all`` makes the next mandatory, ``keep`` changes nothing.
        evaluate_every: rounds between evaluations; 0: after the last only.
        measure_leavers: whether clients that left are still evaluated.
    """

    clients_per_round: NotRequired[int | None]
    min_available_nodes: NotRequired[int]
    start_timeout: NotRequired[float]
    round_timeout: NotRequired[float]
    seed: NotRequired[int]
    mandatory_rounds: NotRequired[int | None]
    empty_pool: NotRequired[Literal["ask-all", "keep"]]
    evaluate_every: NotRequired[int]
    measure_leavers: NotRequired[bool]


def default_mandatory_rounds(num_rounds: int) -> int:
    """Return ``max(10, 5 % of the rounds)``, at most all.

    Five per cent alone (MaxFL, Table 1) freezes short runs: nobody prefers a one-round model to training alone.
    """
    return min(num_rounds, max(10, math.ceil(0.05 * num_rounds)))
