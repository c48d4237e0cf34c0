"""The arrays of a reply, put together as their chunks come, so that each byte of them is in memory once.

Flower keeps all chunks until the last one is there, copies each, joins them and copies the whole.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from flwr.app import Array, ArrayRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content as head_of,
)

from fedappeal.protocol.foreign_text import one_line


class TooLong(ValueError):
    """Arrays that hold more bytes than allowed; the message says which."""


@dataclass
class _Growing:
    """An array, the ids of its chunks that are still to be appended in reverse order, and its bytes so far."""

    array: Array
    left: list[str]
    data: bytearray = field(default_factory=bytearray)


class Assembly:
    """Arrays that grow chunk by chunk; whatever its methods raise concerns the client that sent them.

    Args:
        most: bytes that the arrays may hold together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._growing: dict[str, _Growing] = {}
        self._uses: Counter[str] = Counter()

    def begin(self, contents: Mapping[str, bytes]) -> None:
        """Take in what is said of the arrays; ``contents``: objects by id, others than arrays among them."""
        for object_id, content in contents.items():
            kind, children, _ = head_of(content)
            if kind != Array.__qualname__:
                continue
            told = json.loads(content[content.index(HEAD_BODY_DIVIDER) + 1 :])
            chunks = [children[int(each)] for each in told["arraychunk_ids"]]
            if set(chunks) != set(children):
                raise ValueError("an array does not use all of its chunks")
            array = Array(told["dtype"], tuple(told["shape"]), told["stype"], b"")
            self._growing[object_id] = _Growing(array, chunks[::-1])
            self._uses.update(chunks)

    def advance(self, contents: dict[str, bytes]) -> None:
        """Append the chunks that are there and next in order; each is taken out of ``contents`` with its last use.

        Raises:
            TooLong: the arrays hold more than is allowed.
        """
        for growing in self._growing.values():
            while growing.left and (content := contents.get(growing.left[-1])) is not None:
                chunk = growing.left.pop()
                start = content.index(HEAD_BODY_DIVIDER) + 1
                self._size += len(content) - start
                if head_of(content)[0] != ArrayChunk.__qualname__:
                    raise TypeError("an array consists of something else than chunks")
                if self._size > self._most:
                    shape = one_line(growing.array.shape, 40)
                    raise TooLong(
                        f"an array of shape {shape} and dtype {one_line(growing.array.dtype, 20)} is too large: "
                        f"the reply may hold {self._most} bytes, and its chunks make more"
                    )
                growing.data += memoryview(content)[start:]
                self._uses[chunk] -= 1
                if not self._uses[chunk]:
                    del contents[chunk]

    def named(self) -> dict[str, InflatableObject]:
        """Return the arrays that are whole, by id; in place of its bytes each holds its id, for `fill`."""
        named: dict[str, InflatableObject] = {}
        for object_id, growing in self._growing.items():
            if not growing.left:
                growing.array.data = object_id.encode()
                named[object_id] = growing.array
        return named

    def fill(self, content: RecordDict) -> None:
        """Give a reply's arrays their bytes, and let go of them.

        Flower copies the arrays into its records, and admits none there whose data are a bytearray.
        """
        for record in content.values():
            if isinstance(record, ArrayRecord):
                for array in record.values():
                    array.data = cast(bytes, self._growing[array.data.decode()].data)
        self._growing = {}
