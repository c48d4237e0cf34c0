"""Polls that a SuperLink holds until there is a message for their node, without a thread for each.

Flower answers a poll at once, so a client that waits for a message asks again and again. A client that says so in a
header (`HOLD_HEADER`) is answered when the last object of a message for it has come, or when its time is over: to
send the objects of a thousand messages takes a minute. A poll without the header is answered at once, as Flower does.

Nothing is kept for a held poll but an entry here and its transport's own (`fleet_interceptor`, `fleet_app`). One
thread for all looks at their times, and a few answer them, so that nodes which only wait cost no other node its
thread. A node has one held poll, and all together have `MOST_HELD`; above that polls are answered at once.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from flwr.proto.fleet_pb2 import PullMessagesResponse

from fedappeal.flower.node.fleet import HOLD_HEADER, LONGEST_HOLD
from fedappeal.flower.processes import replace_name

MOST_HELD = 4096
"""Polls that are held at one time."""
_MOST_COMING = 20_000
_ANSWERING = 8
_TICK = 0.25


@dataclass(eq=False)
class Poll:
    """A poll without an answer yet.

    Attributes:
        node: whose it is.
        until: when it is answered in any case, on the monotonic clock.
        ask: asks Flower on its behalf; raises what stands before Flower's code where that refuses the node.
        end: answers it, with Flower's answer or with what asking raised.
        is_open: returns whether its client waits for the answer.
        asking: whether Flower is being asked on its behalf now.
        again: whether a message has come meanwhile.
    """

    node: int
    until: float
    ask: Callable[[], PullMessagesResponse]
    end: Callable[[PullMessagesResponse | Exception], None]
    is_open: Callable[[], bool]
    asking: bool = True
    again: bool = False


class HeldPolls:
    """The held polls of clients that ask for it.

    Args:
        most: polls that are held at one time.
    """

    def __init__(self, most: int = MOST_HELD) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[int, Poll] = {}
        self._starting: set[Poll] = set()
        self._coming: dict[str, int] = {}  # nodes of messages, by the message's own object, which comes last
        self._threads = ThreadPoolExecutor(_ANSWERING, "held-polls")
        threading.Thread(target=self._expire, name="held-polls", daemon=True).start()

    @property
    def held(self) -> int:
        """The number of polls held now."""
        return len(self._held)

    def is_coming(self, message_object: str) -> bool:
        """Whether objects of a message are on their way."""
        return message_object in self._coming

    def watch(self, state: Any) -> None:
        """Answer a held poll once a message for its node is completely stored.

        Args:
            state: the SuperLink's link state, of either kind.
        """
        store_message, store_object = state.store_message_and_object_tree, state.store_object

        def message_stored(message: Any, tree: Any, session_id: str) -> tuple[bool, list[str]]:
            stored, missing = store_message(message, tree, session_id)
            if stored and not message.metadata.reply_to_message_id:
                self._announced(message.metadata.dst_node_id, tree.object_id, tree.object_id not in missing)
            return stored, missing

        def object_stored(run_id: int, session_id: str, object_id: str, content: bytes) -> bool:
            stored = bool(store_object(run_id, session_id, object_id, content))
            if stored and (node := self._coming.pop(object_id, None)) is not None:
                self._wake(node)
            return stored

        replace_name(state, "store_message_and_object_tree", message_stored)
        replace_name(state, "store_object", object_stored)

    def _announced(self, node: int, root: str, complete: bool) -> None:
        if complete:
            self._wake(node)
            return
        with self._lock:
            self._coming[root] = node
            if len(self._coming) > _MOST_COMING:  # of ServerApps that were killed in the middle of a push
                del self._coming[next(iter(self._coming))]

    def _wake(self, node: int) -> None:
        """Ask Flower again on behalf of a node's poll."""
        with self._lock:
            waiting = self._held.get(node)
            for poll in (waiting, *self._starting):
                if poll is not None and poll.node == node and poll.asking:
                    poll.again = True
            if waiting is None or waiting.asking:
                return
            waiting.asking = True
        self._threads.submit(self._ask_again, waiting)

    def hold(self, poll: Poll) -> None:
        """Answer a poll if there is a message, else hold it.

        Raises what its first question raises.
        """
        before = None
        with self._lock:
            self._starting.add(poll)
        try:
            answer = poll.ask()  # first of all: what stands before Flower's code may refuse the node
            with self._lock:
                if poll.node in self._held or len(self._held) < self._most:
                    before = self._held.get(poll.node)
                    self._held[poll.node] = poll
        finally:
            with self._lock:
                self._starting.discard(poll)
        if before is not None and not before.asking:
            before.end(PullMessagesResponse())
        if not poll.is_open():
            self.drop(poll)  # its client is gone already
        self._settle_or_drop(poll, answer)

    def drop(self, poll: Poll) -> None:
        """Drop a poll that is answered, or whose client is gone."""
        with self._lock:
            if self._held.get(poll.node) is poll:
                del self._held[poll.node]

    def _settle_or_drop(self, poll: Poll, answer: PullMessagesResponse) -> None:
        try:
            self._settle(poll, answer)
        except BaseException:
            self.drop(poll)
            raise

    def _settle(self, poll: Poll, answer: PullMessagesResponse) -> None:
        """Answer a poll with a message, or when it is over; else hold it.

        It is over with its time, or where it has no place.
        """
        while True:
            with self._lock:
                mine = self._held.get(poll.node) is poll
                over = bool(answer.messages_list) or time.monotonic() >= poll.until or not mine
                if not over and not poll.again:
                    poll.asking = False
                    return
                poll.again = False
                if over and mine:
                    del self._held[poll.node]
            if over:
                poll.end(answer)
                if answer.messages_list and not mine:
                    # The call may be dead, and the poll in its place was told that there is nothing.
                    self._wake(poll.node)
                return
            answer = poll.ask()

    def _ask_again(self, poll: Poll) -> None:
        try:
            if poll.is_open():
                self._settle_or_drop(poll, poll.ask())
            else:
                self.drop(poll)
        except Exception as error:  # refused by what stands before Flower's code, or failed there
            self.drop(poll)
            poll.end(error)

    def _expire(self) -> None:
        while True:
            time.sleep(_TICK)
            now = time.monotonic()
            with self._lock:
                late = [poll for poll in self._held.values() if poll.until <= now and not poll.asking]
                for poll in late:
                    poll.asking = True
            for poll in late:
                with contextlib.suppress(RuntimeError):  # the process ends
                    self._threads.submit(self._ask_again, poll)


def asked_to_hold(metadata: Any) -> float:
    """Return the seconds for which a poll may be held; 0 if not stated."""
    try:
        seconds = next(float(value) for key, value in metadata or () if key == HOLD_HEADER)
    except (StopIteration, ValueError):
        return 0.0
    return min(seconds, LONGEST_HOLD) if seconds > 0 else 0.0
