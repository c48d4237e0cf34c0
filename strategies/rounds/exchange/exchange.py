"""Exchanges: messages out, replies in as they come, under one deadline, without long sleeps.

Flower's own `Grid.send_and_receive` sleeps for 3 seconds between polls and holds every reply at once.
"""

import sys
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
from strategies.rounds.exchange.replies import NO_ANSWER
from strategies.rounds.round import RoundRecord

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
SLOW_ALONE = "slow alone"
"""Beginning of the reason for which a client is waited for less."""
SURVEY = "survey"
"""Kind of the exchange in which clients measure the model before they train; other kinds: Flower's message types."""

_RULE = f"{FACTOR:g} times the median of the others"

Addressed = tuple[Member, Message]
"""A message, and the client that it goes to."""
TakeReply = Callable[[Member, Message], None]
"""Takes a client's reply."""


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


@dataclass
class Exchange:
    """One exchange under one deadline.

    Attributes:
        channel: the run's.
        record: counts bytes: the serialized sizes of contents, the same in every runtime.
        deadline: on the channel's clock.
        kind: of the exchange, among which answer times are compared.
        allowance: what one reply may hold; by default no model. The model bounds how many are pulled at once.
        needs_all: whether slow clients are waited for until the deadline all the same.
    """

    channel: Channel
    record: RoundRecord
    deadline: float
    kind: str
    allowance: Allowance = field(default_factory=Allowance)
    needs_all: bool = False

    def __post_init__(self) -> None:
        self._silent: list[tuple[Member, str]] = []
        self._at_once = max(1, PULLED_AT_ONCE // max(1, self.allowance.model))
        self._left: dict[str, Member] = {}
        self._paced = self.channel.pace.binds and not self.needs_all
        self._asked: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._answers: dict[str, AnswerTime] = {}
        self._times: list[float] = []

    def run(
        self, waves: Iterator[Sequence[Addressed]], take: TakeReply, missing: Callable[[], int] = lambda: sys.maxsize
    ) -> list[tuple[Member, str]]:
        """Ask wave after wave, and hand over each reply as it comes, in the order of the messages.

        It is over where no client is left that is asked and waited for, or time is up. A wave is asked as soon as the
        clients that have not answered yet could not make up for what is missing, so while they still train. Clients
        that missed a deadline have as long to answer as the others take.

        Args:
            waves: the messages to clients that are asked together, made when a wave is due.
            take: given each reply with its client.
            missing: returns how many replies are still looked for. As many of the first unanswered clients are
                pulled, so that the first joiners in order are the ones that count, and none has to be held.

        Returns:
            The clients without a reply, each with the reason; first those not reached.
        """
        channel, wait, place = self.channel, FIRST_POLL, 0
        while self._ask(waves, missing()):
            overdue, waited, window = channel.clock() >= self.deadline, self._awaited_ids(), missing()
            candidates = list(self._left)
            if 0 < window < len(waited) and not overdue:
                first = set(waited[:window])
                candidates = [i for i, member in self._left.items() if i in first or not self._waits_for(member)]
            offset = place % len(candidates)
            ids = (candidates[offset:] + candidates[:offset])[: self._at_once]
            if self._pull(ids, take):
                wait, place = FIRST_POLL, offset
                continue
            if (place := offset + len(ids)) < len(candidates):
                continue
            place = 0
            if overdue or not waited:
                break
            channel.sleep(max(0.0, min(wait, self._seconds_left)))
            wait = min(LAST_POLL, wait * 1.5)
        return self._close()

    def _ask(self, waves: Iterator[Sequence[Addressed]], missing: int) -> bool:
        """Push the messages of waves that are due; return whether some client has not answered yet."""
        expected = len(self._left) if any(map(self._waits_for, self._left.values())) else 0
        while missing > expected and self._seconds_left > 0 and (messages := next(waves, ())):
            reached = self._send(messages)
            if any(map(self._waits_for, reached)):
                expected += len(reached)
        return bool(self._left)

    def _send(self, messages: Sequence[Addressed]) -> list[Member]:
        """Push messages; return the clients reached, in order."""
        ids = list(self.channel.grid.push_messages([message for _, message in messages]))
        ids += [""] * (len(messages) - len(ids))
        sizes: dict[int, int] = {}
        reached: list[Member] = []
        for (member, message), message_id in zip(messages, ids, strict=True):
            if not message_id:
                self._silent.append((member, NOT_SENT))
                continue
            self._left[message_id] = member
            self._asked[member.client_id] = self.channel.clock()
            reached.append(member)
            self.record.bytes_down += content_size(message.content, sizes)
        return reached

    @property
    def _seconds_left(self) -> float:
        return self.deadline - self.channel.clock()

    def _waits_for(self, member: Member) -> bool:
        """Whether a client's answer is waited for.

        It is where the client missed no deadline since its last answer, and is not too slow.
        """
        if member.client_id in self.channel.absent:
            return False
        return not (self._paced and self._past_patience(member.client_id))

    def _close(self) -> list[tuple[Member, str]]:
        """Return the clients that did not answer, in order, each with the reason why it is not waited for."""
        channel, now = self.channel, self.channel.clock()
        for message_id, member in self._left.items():
            client = member.client_id
            channel.late[message_id] = client
            self._note_silence(client)
            if now < self.deadline and client not in channel.absent and self._paced and self._past_patience(client):
                reason = f"{SLOW_ALONE}: not waited for after {self._patience(client):.1f} s, {_RULE}"
            else:
                channel.absent.add(client)
                reason = NO_ANSWER
            self._silent.append((member, reason))
        if self._paced:
            channel.pace.note(self.kind, self._answers)
        return self._silent

    def _patience(self, client_id: str) -> float:
        return self.channel.pace.patience(self.kind, client_id, self._times)

    def _past_patience(self, client_id: str) -> bool:
        if not self.channel.pace.is_slow(client_id):
            return False
        return self.channel.clock() - self._asked[client_id] >= self._patience(client_id)

    def _note_silence(self, client_id: str) -> None:
        """Remember that a client has not answered by now."""
        if client_id not in self.channel.absent:  # else it cost no time
            self._answers[client_id] = AnswerTime(self.channel.clock() - self._asked[client_id])

    def _note(self, client_id: str, message: Message) -> None:
        """Remember when a client answered."""
        if not self._paced:
            return
        asked_at = self._asked[client_id]
        earliest = max(0.0, self._looked.get(client_id, asked_at) - asked_at)
        worked = message.has_content()
        if worked and self.kind == MessageType.TRAIN:  # one that sits out has not trained
            worked = any(isinstance(record, ArrayRecord) for record in message.content.values())
        latest = self.channel.clock() - asked_at
        self._answers[client_id] = AnswerTime(earliest, latest, worked)
        if worked:
            insort(self._times, latest)

    def _awaited_ids(self) -> list[str]:
        return [i for i, m in self._left.items() if self._waits_for(m)]

    def _pull(self, ids: Sequence[str], take: TakeReply) -> bool:
        """Hand over the replies to these messages, each with its client, in order.

        Returns:
            Whether any came, one to an earlier exchange among them.
        """
        channel = self.channel
        late = list(channel.late)[:_LATE_AT_ONCE]
        for message_id in late:  # the others have their turn next time
            channel.late[message_id] = channel.late.pop(message_id)
        looked = channel.clock()
        replies = {m.metadata.reply_to_message_id: m for m in channel.inbox.pull(ids, self.allowance, late)}
        if self._paced:
            self._looked |= {self._left[i].client_id: looked for i in ids if i not in replies}
        for message_id in (*ids, *late):
            if (message := replies.get(message_id)) is None:
                continue
            if (member := self._left.pop(message_id, None)) is None:
                client_id = channel.late.pop(message_id, None)
                if client_id is not None and not is_from_superlink(message):
                    channel.absent.discard(client_id)
                continue
            if is_from_superlink(message):
                self._note_silence(member.client_id)
                if self._seconds_left <= _EXPIRY:
                    channel.absent.add(member.client_id)
            else:
                channel.absent.discard(member.client_id)
                self._note(member.client_id, message)
            if message.has_content():
                self.record.bytes_up += content_size(message.content)
            take(member, message)
        return bool(replies)
