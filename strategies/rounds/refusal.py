"""Refused replies: the reasons why a client's reply is left out."""

from fedappeal.protocol.foreign_text import one_line


class Refused(ValueError):
    """A reply that is left out; the message says why, for a person to read."""


class NotFinite(Refused):
    """A reply that is left out for a value that is not finite."""


class NoAnswer(Refused):
    """The SuperLink's word in place of a reply: the client gave none."""


def unexpected(error: Exception) -> str:
    """Return what a round's record says of an error that is no `Refused`, in one line."""
    return one_line(f"its reply cannot be used: {type(error).__name__}: {error}")
