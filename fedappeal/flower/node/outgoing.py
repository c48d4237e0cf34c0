"""A message's objects on their way to a SuperLink: each is written out when its turn comes."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING
from types import ModuleType

from flwr.common import log
from flwr.supercore.constant import FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedappeal.flower.processes import replace_name


def push_objects(
    objects: Mapping[str, InflatableObject],
    push_object_fn: Callable[[str, bytes], None],
    *,
    object_ids_to_push: set[str] | None = None,
) -> None:
    """Push objects in order, two at a time; Flower's function of this name, which writes all out first.

    An object that the SuperLink does not store ends nothing: its node may have let the message be forgotten before
    all of it had come. That message stays unanswered, and the others go on.

    Args:
        objects: by id, each after those that it holds.
        push_object_fn: pushes one; what it raises ends the pushing, but for Flower's word that it was not stored.
        object_ids_to_push: those that the SuperLink has not; None: all.
    """

    def push(object_id: str) -> bool:
        try:
            push_object_fn(object_id, objects[object_id].deflate())
        except ObjectPushError:
            return False
        return True

    wanted = [each for each in objects if object_ids_to_push is None or each in object_ids_to_push]
    threads = ThreadPoolExecutor(FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES, "push-objects")
    try:
        refused = sum(not stored for stored in threads.map(push, wanted))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    if refused:
        log(WARNING, "The SuperLink did not store %d of %d objects: their nodes may not answer", refused, len(wanted))


def push_one_by_one(http_grid: ModuleType) -> None:
    """Let Flower's HTTP grid, given as its module, push objects in this way."""
    replace_name(http_grid, "push_objects", push_objects)
