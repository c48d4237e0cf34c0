"""One exchange: messages out, replies in as they come, under one deadline, without long sleeps.

Flower's own `Grid.send_and_receive` sleeps for 3 seconds between polls and holds every reply at once.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedappeal.protocol.packing import content_bytes
from strategies.members import Member

FIRST_POLL = 0.01
"""Seconds between the first polls for replies."""
LAST_POLL = 0.2
"""Longest wait between polls."""
PULLED_AT_ONCE = 64 << 20
"""Bytes of models that may be in memory at once while replies are folded."""
_LATE_AT_ONCE = 4
_FROM_SUPERLINK = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
NOT_SENT = "the message could not be sent"
NO_ANSWER = "no answer before the deadline"


@dataclass
class Traffic:
    """Bytes of an exchange: serialized sizes of the messages' contents, the same in every runtime."""

    up: int = 0
    down: int = 0


@dataclass
class Exchanges:
    """Sends messages and collects replies for one run; remembers who missed a deadline.

    A client that missed a deadline is asked again but not waited for, until it answers again.

    Attributes:
        absent: client-ids that missed a deadline and have not answered since.
    """

    grid: Grid
    absent: set[str] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _late: dict[str, str] = field(default_factory=dict)

    def send(
        self, messages: Sequence[tuple[Member, Message]], traffic: Traffic
    ) -> tuple[dict[str, Member], list[Member]]:
        """Push messages; return those under way by message id, in order, and the clients not reached."""
        ids = list(self.grid.push_messages([message for _, message in messages]))
        ids += [""] * (len(messages) - len(ids))
        sizes: dict[int, int] = {}
        pending: dict[str, Member] = {}
        unreached: list[Member] = []
        for (member, message), message_id in zip(messages, ids, strict=True):
            if not message_id:
                unreached.append(member)
                continue
            pending[message_id] = member
            traffic.down += content_size(message.content, sizes)
        return pending, unreached

    def collect(
        self,
        pending: Mapping[str, Member],
        deadline: float,
        handle: Callable[[Member, Message], None],
        traffic: Traffic,
        *,
        more: Callable[[int], Mapping[str, Member]] | None = None,
        window: Callable[[], int] | None = None,
        model_bytes: int = 0,
    ) -> list[Member]:
        """Hand each reply over as it comes, until all who are waited for have answered or time is up.

        Args:
            pending: the messages under way, by id, in the order in which their replies count.
            deadline: on `clock`.
            handle: called once per reply.
            traffic: counts what comes up.
            more: given how many may still answer (0 where nobody is waited for), sends further messages and returns
                those under way.
            window: how many of the first unanswered clients may be pulled (so that the first joiners in order
                are the ones that count, and none has to be held); None or a result below 1: all.
            model_bytes: size of a reply that carries a model; bounds how many are pulled at once.

        Returns:
            The clients that did not answer, in order.
        """
        left = dict(pending)
        at_once = max(2, PULLED_AT_ONCE // max(1, model_bytes))
        wait, offset = FIRST_POLL, 0
        while True:
            waited = self._waited(left)
            if more and (further := more(len(left) if waited else 0)):
                left |= further
                waited = self._waited(left)
            if not left:
                break
            overdue = self.clock() >= deadline
            candidates = self._candidates(left, waited, window() if window else 0, overdue)
            offset = offset % len(candidates)
            ids = (candidates[offset:] + candidates[:offset])[:at_once]
            if self._pull(ids, left, handle, traffic):
                wait = FIRST_POLL
                continue
            offset += len(ids)
            if offset < len(candidates):
                continue
            offset = 0
            if overdue or not waited:
                break
            self.sleep(max(0.0, min(wait, deadline - self.clock())))
            wait = min(LAST_POLL, wait * 1.5)
        for message_id, member in left.items():
            self.absent.add(member.client_id)
            self._late[message_id] = member.client_id
        return list(left.values())

    def _waited(self, left: Mapping[str, Member]) -> list[str]:
        return [i for i, m in left.items() if m.client_id not in self.absent]

    def _candidates(self, left: Mapping[str, Member], waited: Sequence[str], size: int, overdue: bool) -> list[str]:
        if size < 1 or overdue:
            return list(left)
        inside = set(waited[:size])
        return [i for i, m in left.items() if i in inside or m.client_id in self.absent]

    def _pull(
        self,
        ids: Sequence[str],
        left: dict[str, Member],
        handle: Callable[[Member, Message], None],
        traffic: Traffic,
    ) -> bool:
        """Pull replies, hand them over in the order of ``ids``, and keep none; return whether there were any."""
        late = list(self._late)[:_LATE_AT_ONCE]
        for message_id in late:  # the others have their turn next time
            self._late[message_id] = self._late.pop(message_id)
        replies = {m.metadata.reply_to_message_id: m for m in self.grid.pull_messages([*ids, *late])}
        for message_id in (*ids, *late):
            if (message := replies.get(message_id)) is None:
                continue
            if (member := left.pop(message_id, None)) is None:
                self._answered_late(message_id, message)
                continue
            if answered(message):
                self.absent.discard(member.client_id)
            if message.has_content():
                traffic.up += content_size(message.content)
            handle(member, message)
        return bool(replies)

    def _answered_late(self, message_id: str, message: Message) -> None:
        client_id = self._late.pop(message_id, None)
        if client_id is not None and answered(message):
            self.absent.discard(client_id)


def answered(message: Message) -> bool:
    """Whether a reply is the client's own, not the SuperLink's word that there is none."""
    return message.has_content() or message.error.code not in _FROM_SUPERLINK


def content_size(content: RecordDict, known: dict[int, int] | None = None) -> int:
    """Serialized size of a message's content in bytes: what its objects hold, without Flower's framing.

    Args:
        content: the records.
        known: sizes of records already measured, by identity (one model goes to many clients).
    """
    known = {} if known is None else known
    total = 0
    for name, record in content.items():
        if id(record) not in known:
            if isinstance(record, ArrayRecord):
                known[id(record)] = content_bytes(record) + sum(
                    len(key) + len(array.dtype) for key, array in record.items()
                )
            else:
                known[id(record)] = len(record.deflate())
        total += len(name) + known[id(record)]
    return total
