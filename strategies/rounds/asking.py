"""Mandatory rounds that the server chooses itself: ``mandatory-rounds = auto``.

It asks while the share of clients that the model appeals to is below a target and still grows. It stops when the
target is reached, or when the share has not grown for a while. It asks again when the share has fallen from its best,
after as many free rounds. It never asks in more than half of a run's rounds: members that lie about the model cost
the others no more than that.

The evidence is what clients say of the model when it is evaluated, pooled over `FEWEST` answers, or over all clients
where they are fewer. Members that have left count as clients that the model does not appeal to. Where clients say
nothing, every `FREE_EVERY`-th round is free, and what clients decide in it is the evidence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedappeal.protocol import keys
from fedappeal.settings.rounds import most_asked_rounds

TARGET = 0.9
"""Share of clients that the model has to appeal to; beyond it the server asks no more."""
FALL = 0.1
"""By how much the share may fall before the server asks again."""
FEWEST = 30
"""Answers that are evidence; all clients' where they are fewer."""
PATIENCE = 3
"""The server waits for the share to grow for the rounds in which it may ask, divided by this number."""
LEAST_PATIENCE = 5
"""Fewest rounds for which the server waits for the share to grow."""
FREE_EVERY = 5
"""Rounds from one free round to the next where clients say nothing about the model."""
_EVIDENCE = (keys.APPEALED_HELD_OUT, keys.APPEALED_TRAIN, keys.APPEALED)
"""Keys of an answer that say whether the model appeals to the client; the first that is there counts."""


@dataclass
class Asking:
    """Evidence by which a server decides whether a round is mandatory.

    Attributes:
        asked: mandatory rounds so far.
        share: of the clients that the model appeals to, by the latest evidence; None: no evidence yet.
        best: its highest value so far.
        since: mandatory rounds that had been asked when `best` was reached, or asking began again.
        looks: pieces of evidence since then.
        stopped: the round in which the server stopped asking; 0: it asks.
        silent: whether the latest round that was evaluated gave no evidence.
        pooled: answers that are not evidence yet, and how many of them the model appeals to.
    """

    asked: int = 0
    share: float | None = None
    best: float = 0.0
    since: int = 0
    looks: int = 0
    stopped: int = 0
    silent: bool = True
    pooled: list[int] = field(default_factory=lambda: [0, 0])

    def asks(self, number: int, rounds: int) -> bool:
        """Whether the server asks clients not to opt out of a round.

        Args:
            number: the round, from 1.
            rounds: of the run when it began; 0: not known.
        """
        if not self.may_ask(rounds) or (self.silent and number % FREE_EVERY == 0):
            return False
        patience = max(LEAST_PATIENCE, most_asked_rounds(rounds) // PATIENCE)
        if self.stopped:
            if self.share is None or self.share > self.best - FALL or number < self.stopped + patience:
                return False
            self.stopped, self.since, self.looks = 0, self.asked, 0
        level = self.looks > 1 and self.asked - self.since >= patience
        if level or (self.share is not None and self.share >= TARGET):
            self.stopped = number
        return not self.stopped

    def may_ask(self, rounds: int) -> bool:
        """Whether the server has not asked in half of the rounds yet."""
        return self.asked < most_asked_rounds(rounds)

    def note_answers(self, answers: Iterable[Mapping[str, Any]], clients: int, left: int) -> None:
        """Take in what clients said of a model.

        Args:
            answers: checked answers to EVALUATE.
            clients: of the run that have not left.
            left: those that have left.
        """
        appeals = []
        for answer in answers:
            if key := next(filter(answer.__contains__, _EVIDENCE), ""):
                appeals.append(float(answer[key]))
        self.silent = not appeals
        if appeals:
            self._pool(sum(appeal > 0 for appeal in appeals), len(appeals), clients, left)

    def note_decisions(self, joined: int, asked: int, clients: int, left: int) -> None:
        """Take in what clients decided in a free round, where they said nothing of its model."""
        if self.silent and asked:
            self._pool(joined, asked, clients, left)

    def _pool(self, met: int, answers: int, clients: int, left: int) -> None:
        self.pooled = [self.pooled[0] + met, self.pooled[1] + answers]
        if self.pooled[1] < min(FEWEST, clients):
            return
        remain = clients / (clients + left) if clients else 1.0
        self.share, self.pooled = remain * self.pooled[0] / self.pooled[1], [0, 0]
        self.looks += 1
        if self.share > self.best:
            self.best, self.since, self.looks = self.share, self.asked, 0

    def state(self) -> dict[str, Any]:
        """Return all of it as scalars and lists, for a checkpoint."""
        values = {**vars(self), "share": -1.0 if self.share is None else self.share}
        return {f"asking-{name}": value for name, value in values.items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Asking":
        """Return what `state` recorded; of a run without it, the beginning."""
        names = {name: state[f"asking-{name}"] for name in vars(cls()) if f"asking-{name}" in state}
        asking = cls(**names)
        asking.share = asking.share if asking.share is not None and asking.share >= 0 else None
        asking.silent, asking.pooled = bool(asking.silent), [int(count) for count in asking.pooled]
        return asking
