"""The tree of objects of an announced message: how large and how deep one may be."""

from flwr.proto.message_pb2 import ObjectTree

DEEPEST = 5
"""Message, RecordDict, record, array, chunk."""


class TreeRefused(ValueError):
    """A tree is not one of a Flower message, or too large; the message says why."""


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
