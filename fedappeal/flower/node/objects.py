"""A message as the tree of objects that the Fleet API carries, each by its SHA-256."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Array, Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)

from fedappeal.flower.grid.assembly import Assembly
from fedappeal.flower.messages import set_message_id
from fedappeal.flower.node.fleet import Announcement, MessageDropped
from fedappeal.protocol.packing import Allowance


def announcement(message: MessageProto, tree: ObjectTree) -> Announcement:
    """Return the announcement in a message without content and its object tree."""
    bare = message_from_proto(message)
    *parts, root = dict.fromkeys(node.object_id for node in iterate_object_tree(tree))
    set_message_id(bare, root)
    return Announcement(root, tuple(parts), bare)


def inflate(object_id: str, contents: dict[str, bytes]) -> Message:
    """Return the message built from its objects' contents, which are let go of meanwhile.

    Args:
        object_id: the message's own object.
        contents: of that object and of all that it holds; the caller has checked what they make (`inflated_size`).

    Raises:
        MessageDropped: if the object is no message.
    """
    assembly = Assembly(Allowance(sys.maxsize, sys.maxsize))
    assembly.begin(contents)
    assembly.advance(contents)
    try:
        message = assembly.message(object_id, contents)
    except TypeError as error:
        raise MessageDropped(str(error)) from None
    # An object does not hold its own id.
    set_message_id(message, object_id)
    return message


@dataclass(frozen=True)
class Parcel:
    """A reply split into its objects.

    Attributes:
        message: the message without its content.
        tree: the ids of its objects.
        objects: the objects, by id.
    """

    message: MessageProto
    tree: ObjectTree
    objects: Mapping[str, InflatableObject]

    @classmethod
    def of(cls, reply: Message) -> "Parcel":
        """Return a reply split into its objects."""
        with no_object_id_recompute():
            set_message_id(reply, reply.object_id)
            return cls(
                message_to_proto(remove_content_from_message(reply)),
                get_object_tree(reply),
                get_all_nested_objects(reply),
            )

    @property
    def content_id(self) -> str:
        """Return the hash (SHA-256) of a reply's RecordDict as sent, or of its error."""
        return str(self.tree.children[0].object_id if self.tree.children else self.tree.object_id)

    def contents(self, wanted: set[str]) -> dict[str, bytes]:
        """Return the contents of the wanted objects."""
        return {object_id: item.deflate() for object_id, item in self.objects.items() if object_id in wanted}


_CHUNKS = "arraychunk_ids"


def inflated_size(contents: Mapping[str, bytes]) -> int:
    """Return the bytes of a message's content, each piece counted where it is named.

    Args:
        contents: of all its objects, by object id.

    Raises:
        ValueError, KeyError and others: for objects that are not Flower's.
    """
    total, pieces = 0, set[str]()
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != Array.__qualname__:
            continue
        pieces.update(children)
        places = json.loads(get_object_body(content, Array))[_CHUNKS]
        total += sum(len(contents[children[place]]) for place in places)
    return total + sum(len(content) for object_id, content in contents.items() if object_id not in pieces)
