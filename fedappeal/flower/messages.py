"""Messages and errors: copies, replies, message ids, and the process-wide identity that Flower gives a new message.

Flower's constructors check every argument, key and value by itself. Of a message to many clients the first is made
so, and the others are its copies; a reply that holds plain numbers alone is checked as a whole.
"""

import time
from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.error import FlowerError
from flwr.supercore.task_identity import TaskIdentity

from fedappeal.system.clock import CLOCK

FROM_SUPERLINK = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""Codes of the error replies with which a SuperLink stands in for a client."""
_DEFAULT_ACTION = "default"
_NUMBERS = {int, float}
_NO_NUMBERS, _NO_RECORDS = vars(MetricRecord()), vars(RecordDict())
T = TypeVar("T")


def is_from_superlink(message: Message) -> bool:
    """Whether the SuperLink, not the client, says that there is no reply."""
    return message.has_error() and message.error.code in FROM_SUPERLINK


def has_no_handler(message: Message) -> bool:
    """Whether an error reply says that the ClientApp handles no such message.

    A ClientApp without ``@app.query()`` answers a QUERY so. Flower has no error code for it, only a text.
    """
    if not message.has_error() or message.error.code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
        return False
    category, _, action = message.metadata.message_type.partition(".")
    text = f"No {category} function registered with name '{action or _DEFAULT_ACTION}'"
    return text in (message.error.reason or "")


def error_reply(reason: str, reply_to: Message) -> Message:
    """Return the error reply of an app that raised.

    Args:
        reason: one line for the server's log.
        reply_to: the message that it answers.
    """
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=reply_to)


def _of_state(kind: type[T], state: dict[str, object]) -> T:
    """Return an object of Flower's that holds a state, which none of its checks sees."""
    made = object.__new__(kind)
    made.__dict__ = state
    return made


def copy_for_node(message: Message, node_id: int) -> Message:
    """Return a copy of a message, and of its content, to another node."""
    metadata = _of_state(type(message.metadata), dict(vars(message.metadata)))
    metadata.dst_node_id = node_id
    return _of_state(Message, {**vars(message), "_metadata": metadata, "_content": message.content.copy()})


def reply_of_numbers(name: str, numbers: Mapping[str, Any], reply_to: Message) -> Message:
    """Return the reply that holds one MetricRecord.

    Args:
        name: of the record.
        numbers: by key.
        reply_to: the message that it answers.

    Raises:
        TypeError: a key or value that Flower does not allow.
    """
    if not ({*map(type, numbers)} == {str} and {*map(type, numbers.values())} <= _NUMBERS):
        return Message(RecordDict({name: MetricRecord(dict(numbers))}), reply_to=reply_to)
    record = _of_state(MetricRecord, {**_NO_NUMBERS, "_data": dict(numbers)})
    asked, now = reply_to.metadata, time.time()
    metadata = {
        **vars(asked),
        "_message_id": "",
        "_reply_to_message_id": asked.message_id,
        "_src_node_id": asked.dst_node_id,
        "_dst_node_id": asked.src_node_id,
        "_src_task_id": asked.dst_task_id,
        "_dst_task_id": asked.src_task_id,
        "_delivered_at": "",
        "_created_at": now,
        "_ttl": asked.created_at + asked.ttl - now,
    }
    content = _of_state(RecordDict, {**_NO_RECORDS, "_data": {name: record}})
    return _of_state(Message, {"_metadata": _of_state(type(asked), metadata), "_content": content, "_error": None})


def set_message_id(message: Message, message_id: str) -> None:
    """Set a message's id.

    Flower sets it by hand too: there is no public way.
    """
    message.metadata.__dict__["_message_id"] = message_id


def set_times(reply: Message, until: float) -> None:
    """Set the times of a reply to what the SuperLink expects.

    Whatever this machine's clock was set to.

    Args:
        reply: what is about to be sent.
        until: when the message that it answers expires, in seconds since 1970.
    """
    reply.metadata.created_at = now = CLOCK.now()
    reply.metadata.ttl = until - now


def seconds_left(message: Message) -> float:
    """Return the seconds until a message expires."""
    about = message.metadata
    return about.created_at + about.ttl - CLOCK.now()


def be_sender(run_id: int, node_id: int, task_id: int) -> None:
    """Make this process the sender of messages, a ServerApp or a node.

    Else making one outside Flower raises.

    Args:
        run_id: the run of every message made from now on.
        node_id: their source.
        task_id: the task that makes them.
    """
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, task_id


_LONGEST = 20_000
"""Characters of an error that is looked at."""


def known_error(text: str) -> FlowerError | None:
    """Return a text parsed as Flower's error; None if it is none, or harmful."""
    if len(text) > _LONGEST:
        return None
    try:
        return FlowerError.from_json(text)
    except (RecursionError, TypeError, ValueError):
        return None
