"""What a client did with a message, as one value.

Its reply, log, status and page are views of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from client.state.activity import Judged
from fedappeal.core.requirement import Measured, Requirement
from fedappeal.flower.messages import reply_of_numbers
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision

Metrics = Mapping[str, int | float | list[int] | list[float]]
JOINED, SAT_OUT, LEFT = "joined", "sat out", "left for good"
EVALUATED, ANSWERED, DECLINED, FAILED = "evaluated", "answered", "declined", "failed"
WAITING = "waiting"
DECISIONS = {Decision.JOINED: JOINED, Decision.SAT_OUT: SAT_OUT, Decision.LEFT: LEFT}


@dataclass(frozen=True)
class Outcome:
    """What a client did with one message.

    Attributes:
        what: ``joined``, ``sat out``, ``left for good``, ``evaluated``, ``answered`` (the roll call), ``declined``
            (for its own data, or unapproved), ``waiting`` (for its owner's approval) or ``failed`` (an error reply).
        why: the reason, where figures do not tell it.
        judged: what it measured of the model beside what it requires, and what it paid; None: it measured nothing, or
            has no owner who looks.
        told: what its reply tells; None: nothing.
        records: further records of the reply: its update, or who it is.
        measured: where it joined: what it reports from.
        requirement: where it joined: what it requires.
        replied: its reply, where that is an error or an app's own; None: `told` and `records` make it.
    """

    what: str
    why: str = ""
    judged: Judged | None = None
    told: Metrics | None = None
    records: Mapping[str, ArrayRecord | ConfigRecord] = field(default_factory=dict)
    measured: Measured | None = None
    requirement: Requirement | None = None
    replied: Message | None = None

    def reply(self, message: Message) -> Message:
        """Return the reply to a message."""
        if self.replied is not None:
            return self.replied
        if self.told is not None and not self.records:
            return reply_of_numbers(keys.METRICS, self.told, message)
        told = {} if self.told is None else {keys.METRICS: MetricRecord(dict(self.told))}
        return Message(RecordDict({**told, **self.records}), reply_to=message)
