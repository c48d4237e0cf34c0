"""Exchanges: messages out, replies in as they come, under one deadline, without long sleeps.

Flower's own `Grid.send_and_receive` sleeps for 3 seconds between polls and holds every reply at once.
"""

import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from fedappeal.flower.grid.inbox import Inbox, inbox_of
from fedappeal.flower.messages import is_from_superlink
from fedappeal.protocol.packing import Allowance, content_size
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.pace import FACTOR, AnswerTime, Pace

FIRST_POLL = 0.01
"""Seconds between the first polls for replies."""
LAST_POLL = 0.2
"""Longest wait between polls."""
PULLED_AT_ONCE = 64 << 20
"""Bytes of models that may be in memory at once while replies are added up."""
_LATE_AT_ONCE = 4
_EXPIRY = 1.0
"""Seconds before the deadline in which the SuperLink's word that a message has expired means a missed deadline."""
NOT_SENT = "the message could not be sent"
NO_ANSWER = "no answer before the deadline"
SLOW_ALONE = "slow alone"
"""Beginning of the reason for which a client is waited for less."""
SURVEY = "survey"
"""Kind of the exchange in which clients measure the model before they train; other kinds: Flower's message types."""

_RULE = f"{FACTOR:g} times the median of the others"

Addressed = tuple[Member, Message]
"""A message, and the client that it goes to or comes from."""


@dataclass
class Channel:
    """Messages of one run over Flower's grid; remembers which clients missed a deadline.

    A client that missed a deadline is asked again but not waited for, until it answers again. One that is slow alone
    is waited for less (`Pace`).

    Attributes:
        absent: client-ids that missed a deadline and have not answered since.
        late: client-ids by the id of a message whose deadline they missed.
        pace: which clients are slow alone; it binds where clients are on other machines. A resumed run begins afresh.
        inbox: where replies come from.
    """

    grid: Grid
    absent: set[str] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    late: dict[str, str] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        self.inbox = inbox_of(self.grid)
        self.pace.binds |= self.inbox.remote


class Exchange:
    """One exchange under one deadline. Send, then poll until it is over, then close it.

    Attributes:
        bytes_up: serialized size of the replies' contents so far, the same in every runtime.
        bytes_down: that of the messages'.
        over: whether no further reply is waited for.
    """

    def __init__(
        self,
        channel: Channel,
        deadline: float,
        kind: str,
        *,
        model_bytes: int = 0,
        allowance: Allowance | None = None,
        needs_all: bool = False,
    ) -> None:
        """Begin.

        Args:
            channel: the run's.
            deadline: on the channel's clock.
            kind: of the exchange, among which answer times are compared.
            model_bytes: size of a reply that carries a model; bounds how many are pulled at once.
            allowance: what one reply may hold; None: no model.
            needs_all: whether slow clients are waited for until the deadline all the same.
        """
        self.bytes_up = self.bytes_down = 0
        self.over = False
        self._channel = channel
        self._deadline = deadline
        self._at_once = max(1, PULLED_AT_ONCE // max(1, model_bytes))
        self._left: dict[str, Member] = {}
        self._wait, self._offset = FIRST_POLL, 0
        self._kind, self._allowance = kind, allowance or Allowance()
        self._paced = channel.pace.binds and not needs_all
        self._asked: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._answers: dict[str, AnswerTime] = {}
        self._times: list[float] = []

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
        """The number of clients that may still answer.

        0 where none of them is waited for.
        """
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
            self._asked[member.client_id] = self._channel.clock()
            reached.append(member)
            self.bytes_down += content_size(message.content, sizes)
        return reached, unreached

    def waits_for(self, member: Member) -> bool:
        """Whether a client's answer is waited for.

        It is where the client missed no deadline since its last answer, and is not too slow.
        """
        if member.client_id in self._channel.absent:
            return False
        return not (self._paced and self._past_patience(member.client_id))

    def poll(self, window: int = 0) -> Iterator[Addressed]:
        """Yield the replies that are there, in the order of the messages; else sleep briefly.

        Args:
            window: how many of the first unanswered clients may be pulled, so that the first joiners in order are
                the ones that count, and none has to be held; below 1: all.
        """
        overdue = self._channel.clock() >= self._deadline
        waited = self._waited()
        candidates = list(self._left)
        if window > 0 and not overdue:
            first = set(waited[:window])
            candidates = [i for i, member in self._left.items() if i in first or not self.waits_for(member)]
        offset = self._offset % len(candidates)
        ids = (candidates[offset:] + candidates[:offset])[: self._at_once]
        any_reply = False
        for reply in self._pull(ids):
            any_reply = True
            if reply is not None:
                yield reply
        if any_reply:
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

    def close(self) -> list[tuple[Member, str]]:
        """End the exchange; return the clients that did not answer, in order.

        Each comes with the reason why it is not waited for.
        """
        channel, now = self._channel, self._channel.clock()
        silent: list[tuple[Member, str]] = []
        for message_id, member in self._left.items():
            client = member.client_id
            channel.late[message_id] = client
            self._note_silence(client)
            if now < self._deadline and client not in channel.absent and self._paced and self._past_patience(client):
                silent.append((member, f"{SLOW_ALONE}: not waited for after {self._patience(client):.1f} s, {_RULE}"))
            else:
                channel.absent.add(client)
                silent.append((member, NO_ANSWER))
        if self._paced:
            channel.pace.note(self._kind, self._answers)
        return silent

    def _patience(self, client_id: str) -> float:
        return self._channel.pace.patience(self._kind, client_id, self._times)

    def _past_patience(self, client_id: str) -> bool:
        if not self._channel.pace.is_slow(client_id):
            return False
        return self._channel.clock() - self._asked[client_id] >= self._patience(client_id)

    def _note_silence(self, client_id: str) -> None:
        """Remember that a client has not answered by now."""
        if client_id not in self._channel.absent:  # else it cost no time
            self._answers[client_id] = AnswerTime(self._channel.clock() - self._asked[client_id])

    def _note(self, client_id: str, message: Message) -> None:
        """Remember when a client answered."""
        if not self._paced:
            return
        asked_at = self._asked[client_id]
        earliest = max(0.0, self._looked.get(client_id, asked_at) - asked_at)
        worked = message.has_content()
        if worked and self._kind == MessageType.TRAIN:  # one that sits out has not trained
            worked = any(isinstance(record, ArrayRecord) for record in message.content.values())
        latest = self._channel.clock() - asked_at
        self._answers[client_id] = AnswerTime(earliest, latest, worked)
        if worked:
            insort(self._times, latest)

    def _waited(self) -> list[str]:
        return [i for i, m in self._left.items() if self.waits_for(m)]

    def _pull(self, ids: Sequence[str]) -> Iterator[Addressed | None]:
        """Yield the replies to these messages, each with its client, in order.

        None for a reply to an earlier exchange.
        """
        channel = self._channel
        late = list(channel.late)[:_LATE_AT_ONCE]
        for message_id in late:  # the others have their turn next time
            channel.late[message_id] = channel.late.pop(message_id)
        looked = channel.clock()
        replies = {m.metadata.reply_to_message_id: m for m in channel.inbox.pull(ids, self._allowance, late)}
        if self._paced:
            self._looked |= {self._left[i].client_id: looked for i in ids if i not in replies}
        for message_id in (*ids, *late):
            if (message := replies.get(message_id)) is None:
                continue
            if (member := self._left.pop(message_id, None)) is None:
                client_id = channel.late.pop(message_id, None)
                if client_id is not None and not is_from_superlink(message):
                    channel.absent.discard(client_id)
                yield None
                continue
            if is_from_superlink(message):
                self._note_silence(member.client_id)
                if self.seconds_left <= _EXPIRY:
                    channel.absent.add(member.client_id)
            else:
                channel.absent.discard(member.client_id)
                self._note(member.client_id, message)
            if message.has_content():
                self.bytes_up += content_size(message.content)
            yield member, message
