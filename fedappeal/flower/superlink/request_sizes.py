"""Most bytes of each request of the Fleet API.

They are few, but for objects and their tree.
"""

from collections.abc import Mapping
from types import MappingProxyType

SMALL_REQUEST = 64 << 10
"""Most bytes of a request that carries no objects, and of any from an unknown key."""
LARGEST_REQUEST = 24 << 20
"""Bytes of one that carries an object; Flower cuts an array into chunks of at most 20 MiB."""
_LARGER: Mapping[str, int] = MappingProxyType({"PushObject": LARGEST_REQUEST, "PushMessages": 2 << 20})


def most_bytes(call: str) -> int:
    """Return the most bytes of a call's request.

    Parsed, empty fields take thirty times as much memory.
    """
    return _LARGER.get(call, SMALL_REQUEST)
