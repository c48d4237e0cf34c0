"""What http_inbox.push_objects relies on: the function of Flower's grid that it stands in for."""

import inspect
import threading
from typing import TYPE_CHECKING

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.constant import FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.superlink.grid import http_grid

from fedappeal.flower.grid import http_inbox as outgoing
from fedappeal.flower.grid.inbox import inbox_of
from fedappeal.flower.messages import be_sender
from fedappeal.protocol import keys
from tests.flower.runtime_api import SENT

if TYPE_CHECKING:
    from tests.flower.runtime_api import World


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


def test_a_superlinks_grid_pushes_in_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_grid, "push_objects", http_grid.push_objects)  # put back afterwards
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
    ended = threading.Event()

    def fail(object_id: str, content: bytes) -> None:
        tried.append(object_id)
        if object_id == "0":
            raise RuntimeError("not stored")
        assert ended.wait(60)

    with pytest.raises(RuntimeError, match="not stored"):
        outgoing.push_objects({str(number): Object() for number in range(1000)}, fail)
    ended.set()
    for thread in threading.enumerate():
        if thread.name.startswith("push-objects"):
            thread.join(60)
    assert len(tried) <= 1 + FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES  # the others were under way


def test_a_message_that_its_node_had_forgotten_while_it_was_sent_costs_no_other_node_its_own(
    world: "World", monkeypatch: pytest.MonkeyPatch
) -> None:
    (hasty, hasty_id), (other, other_id) = world.server.node(), world.server.node()
    be_sender(world.run_id, SUPERLINK_NODE_ID, 1)
    messages = [Message(RecordDict({keys.ARRAYS: SENT}), each, "train", ttl=60.0) for each in (hasty_id, other_id)]
    push, once = world.grid._runtime_client.PushObject, threading.Lock()

    def first_let_it_be_forgotten(request: object) -> object:
        if once.acquire(blocking=False):
            announced = hasty.pull(hasty_id)
            assert announced is not None
            hasty.confirm(hasty_id, world.run_id, announced.object_id)
        return push(request)  # type: ignore[arg-type]

    monkeypatch.setattr(world.grid._runtime_client, "PushObject", first_let_it_be_forgotten)
    assert len(list(world.grid.push_messages(messages))) == 2
    got = other.pull(other_id)
    assert got is not None
    ids = [*got.parts, got.object_id]
    assert other.pull_objects(other_id, world.run_id, ids).keys() == set(ids)


@pytest.mark.parametrize(("refused", "lines"), [(0, []), (2, ["did not store 2 of 5 objects"])])
def test_objects_that_were_not_stored_are_counted(
    monkeypatch: pytest.MonkeyPatch, refused: int, lines: list[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(outgoing, "log", lambda level, text, *values: said.append(text % values))

    def push(object_id: str, content: bytes) -> None:
        if int(object_id) < refused:
            raise inflatable_utils.ObjectPushError(object_id, 1, "session")

    outgoing.push_objects({str(number): Object() for number in range(5)}, push)
    assert len(said) == len(lines)
    assert all(line in text for line, text in zip(lines, said, strict=True))
