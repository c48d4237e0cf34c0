"""Exchanges: messages out, replies in as they come, under one deadline, without long sleeps.

Flower's own `Grid.send_and_receive` sleeps for 3 seconds between polls and holds every reply at once.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from fedappeal.flower.messages import is_from_superlink
from fedappeal.protocol.packing import content_size
from strategies.rounds.members import Member

FIRST_POLL = 0.01
"""Seconds between the first polls for replies."""
LAST_POLL = 0.2
"""Longest wait between polls."""
PULLED_AT_ONCE = 64 << 20
"""Bytes of models that may be in memory at once while replies are added up."""
_LATE_AT_ONCE = 4
NOT_SENT = "the message could not be sent"
NO_ANSWER = "no answer before the deadline"

Addressed = tuple[Member, Message]
"""A message, and the client that it goes to or comes from."""


@dataclass
class Channel:
    """Messages of one run over Flower's grid; remembers which clients missed a deadline.

    A client that missed a deadline is asked again but not waited for, until it answers again.

    Attributes:
        absent: client-ids that missed a deadline and have not answered since.
        late: client-ids by the id of a message whose deadline they missed.
    """

    grid: Grid
    absent: set[str] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    late: dict[str, str] = field(default_factory=dict)


class Exchange:
    """One exchange under one deadline. Send, then poll until it is over, then close it.

    Attributes:
        bytes_up: serialized size of the replies' contents so far, the same in every runtime.
        bytes_down: that of the messages'.
        over: whether no further reply is waited for.
    """

    def __init__(self, channel: Channel, deadline: float, model_bytes: int = 0) -> None:
        """Begin.

        Args:
            channel: the run's.
            deadline: on the channel's clock.
            model_bytes: size of a reply that carries a model; bounds how many are pulled at once.
        """
        self.bytes_up = self.bytes_down = 0
        self.over = False
        self._channel = channel
        self._deadline = deadline
        self._at_once = max(2, PULLED_AT_ONCE // max(1, model_bytes))
        self._left: dict[str, Member] = {}
        self._wait, self._offset = FIRST_POLL, 0

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - self._channel.clock()

    @property
    def open(self) -> bool:
        """Whether some client has not answered yet."""
        return bool(self._left)

    @property
    def expected(self) -> int:
        """Number of clients that may still answer; 0 where none of them is waited for."""
        return len(self._left) if self._waited() else 0

    def send(self, messages: Sequence[Addressed]) -> tuple[list[Member], list[Member]]:
        """Push messages; return the clients reached, in order, and those not reached."""
        ids = list(self._channel.grid.push_messages([message for _, message in messages]))
        ids += [""] * (len(messages) - len(ids))
        sizes: dict[int, int] = {}
        reached: list[Member] = []
        unreached: list[Member] = []
        for (member, message), message_id in zip(messages, ids, strict=True):
            if not message_id:
                unreached.append(member)
                continue
            self._left[message_id] = member
            reached.append(member)
            self.bytes_down += content_size(message.content, sizes)
        return reached, unreached

    def waits_for(self, member: Member) -> bool:
        """Whether a client's answer is waited for: it missed no deadline since its last one."""
        return member.client_id not in self._channel.absent

    def poll(self, window: int = 0) -> Iterator[Addressed]:
        """Yield the replies that are there, in the order of the messages; else sleep briefly.

        Args:
            window: how many of the first unanswered clients may be pulled, so that the first joiners in order are
                the ones that count, and none has to be held; below 1: all.
        """
        overdue = self._channel.clock() >= self._deadline
        waited = self._waited()
        candidates = self._candidates(waited, window, overdue)
        offset = self._offset % len(candidates)
        ids = (candidates[offset:] + candidates[:offset])[: self._at_once]
        found = False
        for reply in self._pull(ids):
            found = True
            if reply is not None:
                yield reply
        if found:
            self._wait, self._offset = FIRST_POLL, offset
            return
        self._offset = offset + len(ids)
        if self._offset < len(candidates):
            return
        self._offset = 0
        if overdue or not waited:
            self.over = True
            return
        self._channel.sleep(max(0.0, min(self._wait, self.seconds_left)))
        self._wait = min(LAST_POLL, self._wait * 1.5)

    def replies(self) -> Iterator[Addressed]:
        """Yield each reply as it comes, until all clients have answered or time is up."""
        while self.open and not self.over:
            yield from self.poll()

    def close(self) -> list[Member]:
        """End; return the clients that did not answer, in order."""
        for message_id, member in self._left.items():
            self._channel.absent.add(member.client_id)
            self._channel.late[message_id] = member.client_id
        return list(self._left.values())

    def _waited(self) -> list[str]:
        return [i for i, m in self._left.items() if self.waits_for(m)]

    def _candidates(self, waited: Sequence[str], size: int, overdue: bool) -> list[str]:
        if size < 1 or overdue:
            return list(self._left)
        inside = set(waited[:size])
        return [i for i, m in self._left.items() if i in inside or not self.waits_for(m)]

    def _pull(self, ids: Sequence[str]) -> Iterator[Addressed | None]:
        """Yield the replies to these messages, in order; None: to an earlier exchange."""
        channel = self._channel
        late = list(channel.late)[:_LATE_AT_ONCE]
        for message_id in late:  # the others have their turn next time
            channel.late[message_id] = channel.late.pop(message_id)
        replies = {m.metadata.reply_to_message_id: m for m in channel.grid.pull_messages([*ids, *late])}
        for message_id in (*ids, *late):
            if (message := replies.get(message_id)) is None:
                continue
            if (member := self._left.pop(message_id, None)) is None:
                client_id = channel.late.pop(message_id, None)
                if client_id is not None and not is_from_superlink(message):
                    channel.absent.discard(client_id)
                yield None
                continue
            if not is_from_superlink(message):
                channel.absent.discard(member.client_id)
            if message.has_content():
                self.bytes_up += content_size(message.content)
            yield member, message
