"""The Fleet API, over which nodes speak to a SuperLink: its calls and errors, whatever carries them.

`FleetApi` is what a client needs of it. `fleet_grpc` carries it over gRPC, as Flower 1.39 does; Flower 1.40 and later
carry the same calls over HTTP. `transport` chooses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message, UserConfig

HOLD_HEADER = "fedappeal-hold"
"""Header of a poll: seconds for which the SuperLink may hold it until there is a message. Flower's own ignores it."""
LONGEST_HOLD = 20.0
"""Most seconds for which a poll is held."""


def always() -> bool:
    """Return True."""
    return True


class NotConnected(ConnectionError):
    """The SuperLink is not there, or does not admit this node now; the message says why, in one line."""


class NotAnswering(NotConnected):
    """The SuperLink is not there."""


class WrongClock(NotConnected):
    """The SuperLink refuses the time that calls are signed with."""


class NodeForgotten(NotConnected):
    """The SuperLink no longer knows this node (it was restarted, say): connect again."""


class Refused(NotConnected):
    """The SuperLink does not admit this node."""


class KeyRequired(Refused):
    """The SuperLink admits keys only that its operator has registered."""


class NotActivated(Refused):
    """The SuperLink does not know this node's key, or counts its node as online."""


class AlreadyRegistered(Refused):
    """The SuperLink knows this node's key."""


class MessageDropped(RuntimeError):
    """A message or a reply is void (its run has ended, or its time is over); the message says why."""


class ObjectTooLarge(MessageDropped):
    """An object is larger than this connection takes in."""


class MessageRefused(MessageDropped):
    """A message that this node does not take in: it is too large, or cannot be read. The text names no file.

    Attributes:
        about: the message without its content, which an error reply may answer.
    """

    def __init__(self, reason: str, about: Message) -> None:
        super().__init__(reason)
        self.about = about


@dataclass(frozen=True)
class Announcement:
    """A message for a node, before its objects are pulled.

    Attributes:
        message_type: ``train``, ``evaluate`` or ``query``.
        run_id: its run.
        task_id: the task that its answer comes from.
        created_at: when it was made, seconds since 1970.
        ttl: seconds for which it counts.
        object_id: the object of the message itself.
        parts: the objects that it holds, children before parents.
        about: the message without its content.
    """

    message_type: str
    run_id: int
    task_id: int
    created_at: float
    ttl: float
    object_id: str
    parts: tuple[str, ...]
    about: Message


@dataclass(frozen=True)
class Upload:
    """What the SuperLink still wants of a reply.

    Attributes:
        session_id: of this upload.
        objects: the contents that it does not have, by object id.
    """

    session_id: str
    objects: Mapping[str, bytes]


@dataclass(frozen=True)
class RunInfo:
    """Where a run's settings are.

    Attributes:
        fab_hash: of its bundle.
        overrides: settings that differ from the bundle's.
    """

    fab_hash: str
    overrides: UserConfig


class FleetApi(Protocol):
    """The calls of the Fleet API, signed with one node's key.

    Every call raises `NotConnected` (or a subclass) where the SuperLink does not answer or does not admit the node,
    and `MessageDropped` where it is about a run that has ended.
    """

    address: str
    """``HOST:PORT``, for messages."""

    def register(self) -> None:
        """Make the key known; `AlreadyRegistered`, or `KeyRequired` where the operator does that."""

    def unregister(self, node_id: int, timeout: float) -> None:
        """Let the key be forgotten."""

    def activate(self, heartbeat_interval: float) -> int:
        """Go online, and return the node id; `NotActivated` where the key is not known or is online."""

    def deactivate(self, node_id: int, timeout: float) -> None:
        """Go offline."""

    def heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """Stay online for twice the interval; False where the node is not known."""

    def pull(self, node_id: int, hold: float = 0.0, waits: Callable[[], bool] = always) -> Announcement | None:
        """Return the oldest message for the node, which is handed out once; None if there is none.

        Args:
            node_id: the node.
            hold: seconds for which the SuperLink may hold the question until there is one, up to `LONGEST_HOLD`.
            waits: asked every quarter of a second meanwhile; False: the message is no longer waited for.

        Raises:
            MessageDropped: where what came is no message.
        """

    def pull_objects(self, node_id: int, run_id: int, object_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the contents that the server has sent so far.

        Raises:
            MessageDropped: where one is gone; ObjectTooLarge where one is larger than this connection takes in.
        """

    def confirm(self, node_id: int, run_id: int, object_id: str) -> None:
        """Let the SuperLink forget a message and its objects."""

    def push(self, node_id: int, reply: Message, runtime_s: float) -> Upload:
        """Announce a reply; its objects follow by `push_objects`."""

    def push_objects(self, node_id: int, run_id: int, upload: Upload) -> None:
        """Send the objects of a reply; `MessageDropped` where the SuperLink did not store one."""

    def get_run(self, node_id: int, run_id: int) -> RunInfo:
        """Return where a run's settings are."""

    def get_fab(self, node_id: int, run_id: int, fab_hash: str) -> bytes:
        """Return a run's bundle."""

    def pass_when_signed(self, shifts: Sequence[float]) -> list[bool]:
        """Whether calls pass that are signed with this machine's time plus these seconds."""

    def close(self) -> None:
        """Close the connection, without a word to the SuperLink."""
