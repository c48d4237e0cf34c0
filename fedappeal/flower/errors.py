"""Flower's errors, as a server sends them."""

from flwr.supercore.error import FlowerError

_LONGEST = 20_000
"""Characters of an error that is looked at."""


def known_error(text: str) -> FlowerError | None:
    """Return the error of Flower's that a text is; None where it is none, or one that is made to do harm."""
    if len(text) > _LONGEST:
        return None
    try:
        return FlowerError.from_json(text)
    except (RecursionError, TypeError, ValueError):
        return None
