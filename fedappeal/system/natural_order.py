"""The order in which a reader expects names with numbers: ``client-2`` before ``client-10``."""

import re

_NUMBER = re.compile(r"([0-9]{1,18})")
"""Longer ones are several: a name may be made up to be costly."""


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return what sorts whole numbers in names by their size."""
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(_NUMBER.split(name))]
