"""A reply that is announced as a tree of objects.

Each part is checked before it is asked for.

Everything here was written by a client. Whatever is wrong with it, and whatever Flower raises while it reads it,
becomes an error reply of that client.
"""

import math
from collections.abc import Callable
from threading import Lock

from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.error_pb2 import Error as ErrorProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata, ObjectTree
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE

from fedappeal.flower.grid.assembly import DEEPEST, Assembly, TooLong, TreeRefused, levels
from fedappeal.flower.messages import FROM_SUPERLINK
from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.packing import Allowance

FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0
"""Seconds until a reply that was incomplete is looked at again: at first, and at most."""


class Incoming:
    """One announced reply, and its objects that have come.

    It is pulled in stages: the message's own object, which honest clients send last; what says how large its arrays
    are; the arrays' values, which are put together as they come.

    Attributes:
        reply_to: id of the message that it answers.
        root: id of the message's own object.
        problem: why it is refused; empty while it is not.
        gone: whether the SuperLink does not have it any more.
        unread: whether only the fact of an answer matters.
        due: time from which it is looked at again.
        asked: time at which it was last asked for.
    """

    def __init__(self, proto: MessageProto, tree: ObjectTree, allowance: Allowance, unread: bool) -> None:
        proto.ClearField("content")  # it comes as objects
        if not proto.HasField("error"):
            proto.content.SetInParent()
        self.reply_to = proto.metadata.reply_to_message_id
        self.root = tree.object_id
        self.problem = ""
        self.gone = False
        self.unread = unread
        self.due, self._wait = -math.inf, FIRST_WAIT
        self.asked = math.inf
        self._proto, self._allowance = proto, allowance
        self._contents: dict[str, bytes] = {}
        self._came: set[str] = set()
        self._assembly = Assembly(allowance)
        self._begun = False
        self._taking = Lock()
        self._size = 0
        self._stages: list[list[str]] = []
        self._stalled = False
        if proto.HasField("error"):
            # The announcement says all. Its own object comes last, and the client has sent all once that is there: to
            # let the SuperLink forget the reply before then fails the client's last request.
            self._stages = [[self.root]] if self.root else []
            return
        try:
            self._stages = _stages(tree, allowance.objects)
        except TreeRefused as error:
            self.problem = str(error)

    @property
    def settled(self) -> bool:
        """Whether no more of the reply is to be pulled."""
        return bool(self.problem) or self.gone or not self._stages

    @property
    def room(self) -> int:
        """The bytes allowed for the reply's next object."""
        return self._allowance.bytes - self._size

    def missing(self) -> list[str]:
        """Return the present stage's objects still to come; none while it stalls."""
        if self.settled or self._stalled:
            return []
        return [object_id for object_id in self._stages[0] if object_id not in self._came]

    def wants(self) -> bool:
        """Whether the present look at the reply continues."""
        return not (self._stalled or self.settled)

    def look(self) -> None:
        """Begin another look at the reply."""
        self._stalled = False

    def take(self, object_id: str, content: bytes) -> None:
        """Add an object that has come; threads may do so at once."""
        with self._taking:
            self._came.add(object_id)
            self._contents[object_id] = content
            self._size += len(content)
            self._wait = FIRST_WAIT
            self._assemble(self._assembly.advance)

    def stall(self, now: float) -> None:
        """End this look: an object has not come yet."""
        self._stalled = True
        self.due = now + self._wait
        self._wait = min(LONGEST_WAIT, self._wait * 1.5)

    def refuse(self, problem: str) -> None:
        """Refuse the reply for a fault of its client."""
        self.problem = self.problem or problem
        self._clear()

    def drop(self) -> None:
        """Forget the reply's content: only that it came matters from now on."""
        self.unread = True
        self._clear()
        self._stages = self._stages and [[self.root]]

    def next_stage(self) -> None:
        """Begin the next stage if the present one is complete."""
        if self.settled or any(object_id not in self._came for object_id in self._stages[0]):
            return
        done = self._stages.pop(0)
        if self.unread:
            self._stages.clear()
        elif done[0] != self.root and not self._begun:
            self._begin_arrays()

    def message(self) -> Message:
        """Return the reply, or an error reply with its fault."""
        try:
            bare = message_from_proto(self._proto)
        except Exception as error:  # metadata of a hostile client
            self.refuse(_unreadable(error))
            bare = message_from_proto(unavailable(self.reply_to, self.problem))
        if self.gone and not bare.has_error():
            return make_message(bare.metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "its objects never came"))
        if self.problem:
            return make_message(bare.metadata, error=Error(ErrorCode.UNKNOWN, self.problem))
        if bare.has_error():
            forged = bare.error.code in FROM_SUPERLINK and bare.metadata.src_node_id != SUPERLINK_NODE_ID
            return make_message(bare.metadata, error=Error(ErrorCode.UNKNOWN, bare.error.reason)) if forged else bare
        if self.unread:
            return make_message(bare.metadata, content=RecordDict())
        try:
            # Of the announced message, which the SuperLink has compared with the one that it answers; the object may
            # name another client.
            contents, self._contents = self._contents, {}
            return make_message(bare.metadata, content=self._assembly.message(self.root, contents).content)
        except Exception as error:  # what a client wrote can make Flower raise anything
            return make_message(bare.metadata, error=Error(ErrorCode.UNKNOWN, _unreadable(error)))

    def _clear(self) -> None:
        self._contents.clear()
        self._came.clear()
        self._assembly = Assembly(self._allowance)

    def _assemble(self, step: Callable[[dict[str, bytes]], None]) -> None:
        """Do a step of the arrays' assembly; refuse the reply where it fails."""
        try:
            step(self._contents)
        except TooLong as error:
            self.refuse(str(error))
        except Exception as error:
            self.refuse(_unreadable(error))

    def _begin_arrays(self) -> None:
        """Begin the assembly of arrays, if they state an allowed size."""
        self._begun = True
        self._assemble(self._assembly.begin)
        if not self.problem:
            self._assemble(self._assembly.advance)


def unavailable(reply_to: str, reason: str) -> MessageProto:
    """Return an error reply in place of a missing reply to this message."""
    node = SUPERLINK_NODE_ID
    about = Metadata(
        reply_to_message_id=reply_to, src_node_id=node, dst_node_id=node, message_type=SYSTEM_MESSAGE_TYPE
    )
    return MessageProto(metadata=about, error=ErrorProto(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=reason))


def _unreadable(error: Exception) -> str:
    return f"its reply cannot be read: {type(error).__name__}: {one_line(error, 200)}"


def _stages(tree: ObjectTree, most: int) -> list[list[str]]:
    """Return the ids of a tree's objects by stage.

    Errors are those of `levels`.
    """
    by_depth = levels(tree, most)
    chunks = dict.fromkeys(node.object_id for level in by_depth[DEEPEST - 1 :] for node in level)
    inner = dict.fromkeys(node.object_id for level in by_depth[1 : DEEPEST - 1] for node in level)
    return [stage for stage in ([tree.object_id], list(inner), [c for c in chunks if c not in inner]) if stage]
