"""Errors that a strategy does not expect: of one client's reply, or of the strategy itself."""

from collections.abc import Mapping

from fedappeal.protocol.foreign_text import one_line

_ENOUGH = 3


def unexpected(error: Exception) -> str:
    """Return what a round's record says of an error that is no `Refused`, in one line."""
    return one_line(f"its reply cannot be used: {type(error).__name__}: {error}")


def check_faults(faults: Mapping[str, Exception], asked: int, joined: int) -> None:
    """Raise the first error of a round where the strategy is at fault, not a client.

    That is where it fails for every client that would have joined, and these are at least three, or all that were
    asked. No single client ends a run of others.

    Args:
        faults: by client-id.
        asked: clients that were asked.
        joined: clients whose reply was used.
    """
    if faults and not joined and len(faults) >= min(_ENOUGH, asked):
        raise next(iter(faults.values()))
