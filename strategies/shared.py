"""Settings that every strategy shares, written down and checked once."""

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from fedappeal.protocol.config import ConfigError

if TYPE_CHECKING:
    from strategies.volunteers import VolunteerStrategy

__all__ = ["Shared", "check", "check_shared"]


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


def check(*rules: tuple[str, object, bool, str]) -> None:
    """Check settings: for each its name, its value, whether that is allowed, and what is.

    A rule is to be a comparison that holds, not one that does not: nan must fail it.

    Raises:
        ConfigError: for the first that is not allowed.
    """
    for name, value, allowed, what in rules:
        if not allowed:
            raise ConfigError(f"{name} = {value} is not allowed: {what}")


def check_shared(of: "VolunteerStrategy") -> None:
    """Check the shared settings of a strategy.

    Raises:
        ConfigError: for the first that is not allowed.
    """
    some, asked = of.clients_per_round, of.mandatory_rounds
    check(
        ("clients-per-round", some, some is None or some >= 1, "at least 1, or None for all"),
        ("min-available-nodes", of.min_available_nodes, of.min_available_nodes >= 1, "at least 1"),
        ("start-timeout", of.start_timeout, of.start_timeout > 0, "more than 0 seconds"),
        ("round-timeout", of.round_timeout, of.round_timeout > 0, "more than 0 seconds"),
        ("seed", of.seed, of.seed >= 0, "at least 0"),
        ("mandatory-rounds", asked, asked is None or asked >= 0, "at least 0, or None"),
        ("empty-pool", of.empty_pool, of.empty_pool in ("ask-all", "keep"), "ask-all, keep"),
        ("evaluate-every", of.evaluate_every, of.evaluate_every >= 0, "at least 0"),
    )
