"""The Fleet API as nodes call it, over gRPC or HTTP: its results and errors.

`fleet_api` makes the calls; `fleet_grpc` and `fleet_http` carry them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message, UserConfig

HOLD_HEADER = "fedappeal-hold"
"""Header of a poll: seconds for which the SuperLink may hold it until there is a message. Flower's own ignores it."""
LONGEST_HOLD = 20.0
"""Most seconds for which a poll is held."""
NO_PLACE = "no place for another node now"
"""What the SuperLink says to a node that wants to register itself while too many do."""


def always() -> bool:
    """Return True."""
    return True


class NotConnected(ConnectionError):
    """The SuperLink is away, or does not admit this node now.

    The message says why, in one line.
    """


class NotAnswering(NotConnected):
    """The SuperLink is not there."""


class WrongClock(NotConnected):
    """The SuperLink refuses the time that calls are signed with."""


class NodeForgotten(NotConnected):
    """The SuperLink no longer knows this node (it was restarted, say): connect again."""


class NotAdmitted(NotConnected):
    """The SuperLink does not admit this node."""


class KeyRequired(NotAdmitted):
    """The SuperLink admits keys only that its operator has registered."""


class NotActivated(NotAdmitted):
    """The SuperLink does not know this node's key, or counts its node as online."""


class AlreadyRegistered(NotAdmitted):
    """The SuperLink knows this node's key."""


class MessageDropped(RuntimeError):
    """A message or reply that is void, as the run or its time is over.

    The message says why.
    """


COMPLETED, FAILED, STOPPED = ENDS = ("completed", "failed", "stopped")
"""How a run ends."""


class RunEnded(MessageDropped):
    """A run that has ended.

    Attributes:
        how: one of `ENDS`; empty: the SuperLink does not say, as Flower's own.
    """

    def __init__(self, reason: str, how: str) -> None:
        super().__init__(reason)
        self.how = how


class ObjectTooLarge(MessageDropped):
    """A request or an answer is larger than the other end takes in."""


class MessageRefused(MessageDropped):
    """A message that this node refuses: too large, or not readable.

    The text names no file.

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
        object_id: the object of the message itself.
        parts: the objects that it holds, children before parents.
        about: the message without its content.
    """

    object_id: str
    parts: tuple[str, ...]
    about: Message


@dataclass(frozen=True)
class Upload:
    """The objects of a reply that the SuperLink still wants.

    Attributes:
        session_id: of this upload.
        objects: the contents that it does not have, by object id.
    """

    session_id: str
    objects: Mapping[str, bytes]


@dataclass(frozen=True)
class RunInfo:
    """The place of a run's settings.

    Attributes:
        fab_hash: of its bundle.
        overrides: settings that differ from the bundle's.
    """

    fab_hash: str
    overrides: UserConfig
