"""What fedappeal.flower.outgoing relies on: the function of Flower's grid that it stands in for."""

import inspect
import threading

import pytest
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.superlink.grid import http_grid

from fedappeal.flower import outgoing
from fedappeal.flower.grid import inbox_of


class Object(InflatableObject):
    """One that notes how many were written out and not pushed yet."""

    waiting, most, lock = 0, 0, threading.Lock()

    def deflate(self) -> bytes:
        with self.lock:
            Object.waiting += 1
            Object.most = max(Object.most, Object.waiting)
        return b"content"


def pushed(object_id: str, content: bytes) -> None:
    with Object.lock:
        Object.waiting -= 1
        PUSHED.append(object_id)


PUSHED: list[str] = []


def test_a_superlinks_grid_pushes_in_this_way() -> None:
    theirs = inspect.signature(inflatable_utils.push_objects).parameters
    assert inspect.signature(outgoing.push_objects).parameters.keys() <= theirs.keys()
    inbox_of(http_grid.HttpGrid(token="any"))
    assert http_grid.push_objects is outgoing.push_objects


def test_what_is_wanted_is_pushed_and_no_more_written_out_than_is_on_its_way() -> None:
    PUSHED.clear()
    objects = {str(number): Object() for number in range(50)}
    outgoing.push_objects(objects, pushed, object_ids_to_push={str(number) for number in range(0, 50, 2)})
    assert sorted(PUSHED, key=int) == [str(number) for number in range(0, 50, 2)]
    assert 1 <= Object.most <= 2
    outgoing.push_objects(objects, pushed)
    assert len(PUSHED) == 75


def test_an_error_ends_the_pushing() -> None:
    tried: list[str] = []

    def fail(object_id: str, content: bytes) -> None:
        tried.append(object_id)
        raise RuntimeError("not stored")

    with pytest.raises(RuntimeError, match="not stored"):
        outgoing.push_objects({str(number): Object() for number in range(1000)}, fail)
    assert len(tried) < 1000
