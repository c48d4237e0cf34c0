"""Replies over Flower's HTTP grid, of which no single one can hold up, overfill or end a run.

``HttpGrid.pull_messages`` waits up to two hours for the objects of one reply, holds whatever its client has sent, and
raises where one reply cannot be read. Here a reply whose objects are not all there is not there yet: it is kept, and
looked at again later, while others are read. Messages go out object by object, each written out when its turn comes.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import chain
from logging import WARNING

import httpx
from flwr.app import Message
from flwr.common import log
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS, FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.superlink.grid.http_grid import HttpGrid

from fedappeal.flower.grid.incoming import Incoming, unavailable
from fedappeal.flower.messages import is_from_superlink
from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.packing import Allowance

_FRAMING = 64
"""Bytes of an answer besides the content."""


class TooLarge(Exception):
    """An object is larger than allowed; the message says how large where that is known."""


_ALLOWED = ContextVar("allowed", default=math.inf)
"""Bytes that an answer to this thread may have."""


def _refuse_large(response: httpx.Response) -> None:
    """Refuse a too large answer before it is read.

    An error is Flower's to read, and to try again.
    """
    announced = response.headers.get("content-length", "an unknown number of")
    if response.is_error or _ALLOWED.get() == math.inf:
        return
    if not (announced.isdigit() and int(announced) <= _ALLOWED.get()):
        raise TooLarge(f"{announced} bytes")


_STAGES = 3
_FORGOTTEN = 600.0
"""Seconds after which what has come of a reply is dropped that is asked for no more."""


class HttpInbox:
    """The replies of one run on a SuperLink.

    Args:
        grid: Flower's grid of the run.
        clock: seconds.
    """

    remote = True

    def __init__(self, grid: HttpGrid, clock: Callable[[], float] = time.monotonic) -> None:
        self._grid = grid
        self._clock = clock
        self._coming: dict[str, Incoming] = {}
        self._one_by_one = False
        self._threads = ThreadPoolExecutor(FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS, "pull-objects")

    def pull(self, ids: Iterable[str], allowance: Allowance, unread: Sequence[str] = ()) -> list[Message]:
        """Return the replies that have come (`Inbox.pull`).

        Every reply answers one of the messages; a reply that cannot be read, or is larger than allowed, is an error
        reply.
        """
        wanted = dict.fromkeys(ids, False) | dict.fromkeys(unread, True)
        for reply_to, only_fact in wanted.items():
            if only_fact and (coming := self._coming.get(reply_to)) is not None and not coming.unread:
                coming.drop()
        fresh = [message_id for message_id in wanted if message_id not in self._coming]
        for proto, tree in self._announcements(fresh):
            reply_to = proto.metadata.reply_to_message_id
            if reply_to in wanted:
                self._coming[reply_to] = Incoming(proto, tree, allowance, wanted[reply_to])
        now = self._clock()
        asked = [reply for message_id in wanted if (reply := self._coming.get(message_id)) is not None]
        for reply in asked:
            reply.asked = now
        self._coming = {key: reply for key, reply in self._coming.items() if reply.asked > now - _FORGOTTEN}
        replies = [reply for reply in asked if reply.due <= now]
        self._fetch(replies)
        return [self._hand_over(reply) for reply in replies if reply.settled]

    def _announcements(self, ids: Sequence[str]) -> list[tuple[MessageProto, ObjectTree]]:
        """Return the replies that the SuperLink hands out, each once."""
        if not ids:
            return []
        if self._one_by_one and len(ids) > 1:
            return list(chain.from_iterable(self._announcements([message_id]) for message_id in ids))
        try:
            answer = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=ids))
        except (httpx.HTTPStatusError, ValueError) as error:
            # A reply whose objects are nested a hundred deep cannot be unpacked, nor can any other one of the same
            # answer, which the SuperLink has then forgotten. From now on such a reply must cost no other one.
            self._one_by_one = True
            cause = f"HTTP {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else error
            reason = f"the SuperLink cannot hand over its reply: {one_line(cause)}"
            return [] if len(ids) > 1 else [(unavailable(ids[0], reason), ObjectTree())]
        return list(zip(answer.messages_list, answer.message_object_trees, strict=True))

    def _fetch(self, replies: Sequence[Incoming]) -> None:
        """Pull the present objects of these replies, stage by stage, side by side."""
        for reply in replies:
            reply.look()
        for _ in range(_STAGES):
            jobs = [(reply, object_id) for reply in replies for object_id in reply.missing()]
            if len(jobs) > 1:
                list(self._threads.map(self._pull_object, *zip(*jobs, strict=True)))
            elif jobs:
                self._pull_object(*jobs[0])
            for reply in replies:
                reply.next_stage()

    def _pull_object(self, reply: Incoming, object_id: str) -> None:
        """Give a reply the SuperLink's answer to a request for an object, which may be refused before it is read."""
        if not reply.wants():
            return
        client = self._grid._runtime_client
        client._client.headers["accept-encoding"] = "identity"  # a compressed answer says nothing about its size
        client._client.event_hooks = {"response": [_refuse_large]}
        _ALLOWED.set(reply.room + _FRAMING)
        try:
            answer = client.PullObject(
                PullObjectRequest(node=self._grid.node, run_id=self._run_id, object_id=object_id)
            )
        except TooLarge as error:
            reply.refuse(
                f"an object of its reply is too large: {error}, where {max(0, reply.room)} bytes are allowed"
            )
        except httpx.HTTPStatusError as error:
            reply.refuse(f"the SuperLink cannot hand over its reply: HTTP {error.response.status_code}")
        else:
            if not answer.object_found:
                reply.gone = True
            elif not answer.object_available:
                reply.stall(self._clock())
            else:
                reply.take(object_id, answer.object_content)
        finally:
            _ALLOWED.set(math.inf)

    def _hand_over(self, reply: Incoming) -> Message:
        """Return a reply, after the SuperLink was told to forget it.

        Where the SuperLink says that there is none, it has forgotten the message as well, but not its objects.
        """
        del self._coming[reply.reply_to]
        message = reply.message()
        if reply.root:
            self._forget(reply.root)
        if is_from_superlink(message):
            self._forget(reply.reply_to)
        return message

    def _forget(self, message_id: str) -> None:
        received = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._run_id, message_object_id=message_id
        )
        with contextlib.suppress(httpx.HTTPStatusError):  # what it cannot forget is the SuperLink's
            self._grid._runtime_client.ConfirmMessageReceived(received)

    @property
    def _run_id(self) -> int:
        run = self._grid._run
        assert run is not None, "Flower gives a ServerApp's grid its run"
        return run.run_id


def push_objects(
    objects: Mapping[str, InflatableObject],
    push_object_fn: Callable[[str, bytes], None],
    *,
    object_ids_to_push: set[str] | None = None,
) -> None:
    """Push objects in order, two at a time.

    It replaces Flower's function of this name, which writes all out first.

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

    wanted = [key for key in objects if object_ids_to_push is None or key in object_ids_to_push]
    threads = ThreadPoolExecutor(FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES, "push-objects")
    try:
        refused = sum(not stored for stored in threads.map(push, wanted))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    if refused:
        log(WARNING, "The SuperLink did not store %d of %d objects: their nodes may not answer", refused, len(wanted))
