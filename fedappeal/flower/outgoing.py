"""A message's objects on their way to a SuperLink: each is written out when its turn comes."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

from flwr.supercore.constant import FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES
from flwr.supercore.inflatable.inflatable_object import InflatableObject

from fedappeal.flower.processes import replace_name


def push_objects(
    objects: Mapping[str, InflatableObject],
    push_object_fn: Callable[[str, bytes], None],
    *,
    object_ids_to_push: set[str] | None = None,
) -> None:
    """Push objects in order, two at a time; Flower's function of this name, which writes all out first.

    Args:
        objects: by id, each after those that it holds.
        push_object_fn: pushes one; what it raises ends the pushing.
        object_ids_to_push: those that the SuperLink has not; None: all.
    """
    wanted = [each for each in objects if object_ids_to_push is None or each in object_ids_to_push]
    threads = ThreadPoolExecutor(FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES, "push-objects")
    try:
        for _ in threads.map(lambda each: push_object_fn(each, objects[each].deflate()), wanted):
            pass
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def push_one_by_one(http_grid: ModuleType) -> None:
    """Let Flower's HTTP grid, given as its module, push objects in this way."""
    replace_name(http_grid, "push_objects", push_objects)
