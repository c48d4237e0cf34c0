"""A number with its noun: ``1 round``, ``2 rounds``."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun; the plural has an s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
