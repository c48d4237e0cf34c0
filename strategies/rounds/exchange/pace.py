"""The clients' answer times: a client that is slow alone is waited for less."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.rounds.exchange.members import Probation

FACTOR = 3.0
"""Times the other clients' median answer time that count as slow."""
FLOOR = 2.0
"""Seconds that never count as slow: at small times, noise is a large factor."""
_OTHERS = 2


@dataclass(frozen=True)
class AnswerTime:
    """The time of a client's answer, in seconds after it was asked.

    A reply is seen when it is looked for: the client answered between the last look without it and the look that
    found it.

    Attributes:
        earliest: the last look without an answer.
        latest: the look that found it; infinite where there was no answer.
        worked: whether it did the work that the exchange asks for, and is compared with.
    """

    earliest: float
    latest: float = math.inf
    worked: bool = True

    @property
    def in_time(self) -> bool:
        """Whether the client did the work and answered."""
        return self.worked and self.latest < math.inf


class Pace:
    """The clients' answer times in one run: a client that is slow alone is waited for less.

    In each exchange a client's answer time is compared with the median of the other clients' that did the same work.
    One that takes more than `FACTOR` times that median, and more than `FLOOR` seconds, answered slowly. From its
    second slow answer it is waited for no longer than that, until it has answered in time often enough: 4 times after
    the second slow answer, 8 times after the third, and so on. Where fewer than two other clients can be compared
    with, nothing is concluded: where all are slow, none is slow alone.

    Args:
        binds: whether a slow client is waited for less; else all are waited for until the deadline.
    """

    def __init__(self, binds: bool = False) -> None:
        self.binds = binds
        self._slow = Probation()
        self._latest: dict[str, dict[str, float]] = {}

    def is_slow(self, client_id: str) -> bool:
        """Whether a client is waited for less."""
        return self.binds and client_id in self._slow

    def patience(self, kind: str, client_id: str, times: Sequence[float]) -> float:
        """Return the seconds for which a slow client's answer is waited for.

        Args:
            kind: of the exchange.
            client_id: the client, which has not answered.
            times: answer times of clients in this exchange so far, ascending.
        """
        if len(times) < _OTHERS:  # asked alone: compared with what the others took when they were asked
            times = sorted(t for client, t in self._latest.get(kind, {}).items() if client != client_id)
        return limit(times)

    def note(self, kind: str, answers: Mapping[str, AnswerTime]) -> None:
        """Remember the times of an exchange that is over, by client-id."""
        latest = self._latest.setdefault(kind, {})
        worked = {client: answer.latest for client, answer in answers.items() if answer.in_time}
        latest |= worked
        ordered = sorted(worked.values())
        for client, answer in answers.items():
            other_times = list(ordered)
            if answer.in_time:
                del other_times[bisect_left(other_times, answer.latest)]
            allowed = limit(other_times) if len(other_times) >= _OTHERS else self.patience(kind, client, [])
            if answer.earliest > allowed:
                self._slow.fail(client)
            elif answer.latest <= allowed:
                self._slow.succeed(client)


def limit(others: Sequence[float]) -> float:
    """Return the seconds beyond which a client is slow, from the others' times, ascending; infinite for too few."""
    if len(others) < _OTHERS:
        return math.inf
    middle = len(others) // 2
    median = others[middle] if len(others) % 2 else (others[middle - 1] + others[middle]) / 2
    return max(FLOOR, FACTOR * median)
