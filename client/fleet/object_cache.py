"""A bounded cache of what came over the wire, by content: the model of an EVALUATE is not pulled again for TRAIN."""

from collections import OrderedDict
from collections.abc import Mapping

LARGEST = 256 * 2**20


class ObjectCache:
    """The most recently used objects, by object id (the SHA-256 of their bytes).

    It holds at most twice the bytes of the largest message seen (two models), and never more than `limit`.
    """

    def __init__(self, limit: int = LARGEST) -> None:
        self._limit = limit
        self._allowed = 0
        self._objects: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0
        self.hits = 0

    def get(self, object_id: str) -> bytes | None:
        """Return an object's bytes, None if they are not here."""
        content = self._objects.get(object_id)
        if content is not None:
            self._objects.move_to_end(object_id)
            self.hits += 1
        return content

    def add_message(self, objects: Mapping[str, bytes]) -> None:
        """Remember the objects of one message, as far as they fit."""
        self._allowed = max(self._allowed, min(self._limit, 2 * sum(map(len, objects.values()))))
        for object_id, content in objects.items():
            if object_id not in self._objects and len(content) <= self._allowed:
                self._objects[object_id] = content
                self.size += len(content)
        while self.size > self._allowed:
            self.size -= len(self._objects.popitem(last=False)[1])
