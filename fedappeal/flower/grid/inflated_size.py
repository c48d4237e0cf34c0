"""How large a message is once it is built: an array may name one piece any number of times."""

import json
from collections.abc import Mapping

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content

_CHUNKS = "arraychunk_ids"


def inflated_size(contents: Mapping[str, bytes]) -> int:
    """Return the bytes of a message's arrays, with each piece as often as it is named, and of all else that it holds.

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
