"""Polls that a SuperLink holds until there is a message for their node, without a thread for each.

Flower answers a poll at once, so a client that waits for a message asks again and again. A client that says so in a
header (`HOLD_HEADER`) is answered when the last object of a message for it has come, or when its time is over. A poll
without the header is answered at once, as Flower does. No such client is handed a message whose objects are on their
way: a ServerApp that calls a thousand nodes takes a minute to send them, and all would ask for them meanwhile.

Nothing is kept for a held poll but an entry here and its transport's own (`held_grpc`, `fleet_app`). One thread for
all looks at their times, and a few answer them, so that nodes which only wait cost no other node its thread. A node
has one held poll, and all together have `MOST_HELD`; above that polls are answered at once.
"""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from flwr.proto.fleet_pb2 import PullMessagesResponse

from fedappeal.flower.node.fleet import HOLD_HEADER, LONGEST_HOLD
from fedappeal.flower.processes import replace_name

MOST_HELD = 4096
"""Polls that are held at one time."""
_MOST_COMING = 20_000
_COMING_FOR = 180.0
"""Seconds after which what is missing of a message is waited for no longer: Flower then gives up its upload."""
_ANSWERING = 8
_TICK = 0.25


class _Coming(NamedTuple):
    """A message whose objects are on their way.

    Attributes:
        until: when it is waited for no longer, on the monotonic clock.
    """

    node: int
    run: int
    until: float


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
        self._coming: OrderedDict[str, _Coming] = OrderedDict()  # by the message's own object, which comes last
        self._incomplete: dict[int, set[str]] = {}  # the same, by node
        self._threads = ThreadPoolExecutor(_ANSWERING, "held-polls")
        threading.Thread(target=self._expire, name="held-polls", daemon=True).start()

    @property
    def held(self) -> int:
        """The number of polls held now."""
        return len(self._held)

    def is_incomplete(self, node: int) -> bool:
        """Whether a node has a message whose objects are on their way."""
        return node in self._incomplete

    def is_coming(self, message_object: str) -> bool:
        """Whether objects of a message are on their way."""
        return message_object in self._coming

    def watch(self, state: Any) -> None:
        """Answer a held poll once a message for its node is completely stored.

        Args:
            state: the SuperLink's link state, of either kind.
        """
        store_message, store_object = state.store_message_and_object_tree, state.store_object
        clean_up = state.cleanup_run

        def message_stored(message: Any, tree: Any, session_id: str) -> tuple[bool, list[str]]:
            stored, missing = store_message(message, tree, session_id)
            if stored and not message.metadata.reply_to_message_id:
                about = message.metadata
                self._announced(about.dst_node_id, about.run_id, tree.object_id, tree.object_id not in missing)
            return stored, missing

        def object_stored(run_id: int, session_id: str, object_id: str, content: bytes) -> bool:
            stored = bool(store_object(run_id, session_id, object_id, content))
            if stored:
                self._let_go([object_id])
            return stored

        def cleaned_up(run_id: int) -> None:
            clean_up(run_id)
            with self._lock:
                ended = [root for root, coming in self._coming.items() if coming.run == run_id]
            self._let_go(ended)

        replace_name(state, "store_message_and_object_tree", message_stored)
        replace_name(state, "store_object", object_stored)
        replace_name(state, "cleanup_run", cleaned_up)

    def _announced(self, node: int, run: int, root: str, complete: bool) -> None:
        with self._lock:
            # A ServerApp that was killed in the middle of a push leaves messages that never become complete, which
            # must not keep the next run's from the node. Of two runs at once a message may so be handed out early.
            others = [other for other in self._incomplete.get(node, ()) if self._coming[other].run != run]
            woken = self._take_out([root, *others])
            if complete:
                woken.add(node)
            else:
                self._coming[root] = _Coming(node, run, time.monotonic() + _COMING_FOR)
                self._incomplete.setdefault(node, set()).add(root)
                if len(self._coming) > _MOST_COMING:
                    woken |= self._take_out([next(iter(self._coming))])
        for woken_node in woken:
            self._wake(woken_node)

    def _let_go(self, objects: Sequence[str]) -> None:
        """Release messages whose last missing objects these are, to their nodes."""
        if not any(object_id in self._coming for object_id in objects):
            return
        with self._lock:
            woken = self._take_out(objects)
        for node in woken:
            self._wake(node)

    def _take_out(self, roots: Iterable[str]) -> set[int]:
        """Stop waiting for these messages; return the nodes that await none now.

        The lock is held.
        """
        complete = set()
        for root in roots:
            if (coming := self._coming.pop(root, None)) is None:
                continue
            left = self._incomplete[coming.node]
            left.discard(root)
            if not left:
                del self._incomplete[coming.node]
                complete.add(coming.node)
        return complete

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
                given_up = [root for root, coming in self._coming.items() if coming.until <= now]
            self._let_go(given_up)
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
