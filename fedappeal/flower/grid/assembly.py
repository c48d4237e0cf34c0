"""The arrays of a reply, assembled chunk by chunk.

Each byte of them is in memory once.

Flower keeps all chunks until the last one is there, copies each, joins them and copies the whole.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content as head_of,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.packing import Allowance

DEEPEST = 5
"""Message, RecordDict, record, array, chunk."""


class TreeRefused(ValueError):
    """An object tree that is none of a Flower message, or too large.

    The message says why.
    """


def levels(tree: ObjectTree, most: int) -> list[list[ObjectTree]]:
    """Return a tree's objects by depth: the root, its children, and so on.

    Args:
        tree: as it was announced.
        most: objects that it may have, each counted as often as it is named.

    Raises:
        TreeRefused: if it has more, is nested deeper than a Flower message, or names an object with other children
            than before.
    """
    by_depth: list[list[ObjectTree]] = []
    count, level = 0, [tree]
    children: dict[str, list[str]] = {}
    while level:
        if len(by_depth) == DEEPEST:
            raise TreeRefused(f"the objects of its reply are nested more than {DEEPEST} deep")
        by_depth.append(level)
        count += len(level)
        below: list[ObjectTree] = []
        for node in level:
            if count + len(below) + len(node.children) > most:
                raise TreeRefused(f"its reply has more than the {most} objects that are allowed")
            below += node.children
            ids = [child.object_id for child in node.children]
            if children.setdefault(node.object_id, ids) != ids:
                raise TreeRefused("its reply names an object with other children than before")
        level = below
    return by_depth


_MOST_DIMENSIONS = 64
_OF_AN_ARRAY, _OF_A_CHUNK = 4096, 256
"""Bytes in which an array says its name, shape and dtype; the ids of a chunk."""


class TooLong(ValueError):
    """Arrays that hold more bytes than allowed; the message says which."""


@dataclass
class _Growing:
    """An array that grows: its ids of chunks to come, reversed, and bytes so far."""

    array: Array
    left: list[str]
    data: BytesIO = field(default_factory=BytesIO)


class Assembly:
    """The arrays of a reply, which grow chunk by chunk.

    Whatever its methods raise concerns the client that sent them.

    Args:
        allowance: what the arrays may hold together.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._size = 0
        self._growing: dict[str, _Growing] = {}
        self._uses: Counter[str] = Counter()

    def begin(self, contents: Mapping[str, bytes]) -> None:
        """Read the arrays' descriptions.

        ``contents``: objects by id, others than arrays among them.

        Raises:
            TooLong: the arrays say that they hold more than is allowed.
            ValueError: what is said makes no sense.
        """
        most, announced = self._allowance, 0
        for object_id, content in contents.items():
            kind, children, _ = head_of(content)
            if kind != Array.__qualname__:
                continue
            if len(content) > _OF_AN_ARRAY + _OF_A_CHUNK * most.objects:  # before it is parsed
                raise ValueError(f"an array takes {len(content)} bytes to say what it is")
            fields = json.loads(content[content.index(HEAD_BODY_DIVIDER) + 1 :])
            announced += _bytes_of(fields)
            if announced > most.bytes:
                raise TooLong(
                    _too_large(fields["shape"], fields["dtype"], f"{most.bytes} bytes, and announces {announced}")
                )
            chunks = [children[int(place)] for place in fields["arraychunk_ids"]]
            if set(chunks) != set(children):
                raise ValueError("an array does not use all of its chunks")
            array = Array(fields["dtype"], tuple(fields["shape"]), fields["stype"], b"")
            self._growing[object_id] = _Growing(array, chunks[::-1])
            self._uses.update(chunks)
        if self._uses.total() > most.objects:
            raise ValueError(f"arrays of {self._uses.total()} chunks are not allowed: up to {most.objects}")

    def advance(self, contents: dict[str, bytes]) -> None:
        """Append the chunks that have come and are next in order.

        Each is taken out of ``contents`` with its last use.

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
                if self._size > (most := self._allowance.bytes):
                    more = f"{most} bytes, and its chunks make more"
                    raise TooLong(_too_large(growing.array.shape, growing.array.dtype, more))
                growing.data.write(memoryview(content)[start:])
                self._uses[chunk] -= 1
                if not self._uses[chunk]:
                    del contents[chunk]

    def message(self, object_id: str, contents: dict[str, bytes]) -> Message:
        """Return the message that objects make, with the arrays that have grown; these are forgotten.

        Args:
            object_id: the message's own object.
            contents: objects by id, without the arrays' chunks.

        Raises:
            TypeError: another object than a message.
            ValueError: an array that lacks chunks, or is not where arrays are.
        """
        arrays: dict[str, InflatableObject] = {}
        for array_id, growing in self._growing.items():
            if not growing.left:
                growing.array.data = array_id.encode()  # until its record is known
                arrays[array_id] = growing.array
        # Flower's own way would repeat a chunk as often as the array names it, without a bound.
        kinds = {key: head_of(content)[0] for key, content in contents.items()}
        if any(kind == Array.__qualname__ and key not in arrays for key, kind in kinds.items()):
            raise ValueError("an array is not where arrays are, or lacks chunks")
        message = inflate_object_from_contents(object_id, contents, objects=arrays)
        if not isinstance(message, Message):
            raise TypeError(f"an object of type {type(message).__name__} came where a message was due")
        for record in message.content.values() if message.has_content() else ():
            if isinstance(record, ArrayRecord):
                for array in record.values():
                    array.data = self._growing[array.data.decode()].data.getvalue()  # its buffer, not a copy
        self._growing = {}
        return message


def _bytes_of(fields: Any) -> int:
    """Return the bytes of an array's values, as announced."""
    shape = fields["shape"]
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"an array has at most {_MOST_DIMENSIONS} dimensions")
    return max(0, math.prod(map(int, shape))) * int(np.dtype(fields["dtype"]).itemsize)


def _too_large(shape: object, dtype: object, more: str) -> str:
    about = (
        f"shape {one_line(tuple(shape) if isinstance(shape, list) else shape, 40)} and dtype {one_line(dtype, 20)}"
    )
    return f"an array of {about} is too large: the reply may hold {more}"
