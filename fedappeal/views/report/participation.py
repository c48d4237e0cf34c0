"""What clients decided over a run's rounds, counted in at most 400 x 400 cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.record.decisions import RoundDecisions, clients_of, is_packed
from fedappeal.system.natural_order import natural_order

MOST = 400
"""Cells in each direction: more are finer than a screen."""
MOST_CLIENTS = 1_000_000
MOST_WORDS = 32
"""Different decisions; there are six."""


@dataclass(frozen=True)
class Participation:
    """Decisions of clients by rounds, in cells of several clients and rounds where there are many.

    Attributes:
        clients: by cell, the first client of each; ``client-2`` before ``client-10``.
        last_clients: the last of each.
        rounds: by cell, the first round of each; ``last_rounds``: the last.
        decisions: the words that occur, as the run's folder records them.
        counts: how often each occurs in a cell, shape ``(decisions, clients, rounds)``.
    """

    clients: tuple[str, ...]
    last_clients: tuple[str, ...]
    rounds: tuple[int, ...]
    last_rounds: tuple[int, ...]
    decisions: tuple[str, ...]
    counts: NDArray[np.int32]

    @property
    def single(self) -> bool:
        """Whether each cell is one client in one round."""
        return self.clients == self.last_clients and self.rounds == self.last_rounds

    @property
    def joined_share(self) -> NDArray[np.float64]:
        """Share that joined of those that were asked, by cell; NaN where no client was."""
        asked = self.counts.sum(axis=0, dtype=np.float64)
        joined = self.counts[self.decisions.index("joined")] if "joined" in self.decisions else np.zeros_like(asked)
        share: NDArray[np.float64] = np.full(asked.shape, np.nan)
        np.divide(joined, asked, out=share, where=asked > 0)
        return share


def participation_of(lines: Iterable[Mapping[str, Any]]) -> Participation | None:
    """Return what the lines of a run's ``participation.jsonl`` say; None where no client was asked.

    Raises:
        ValueError: a line is damaged.
    """
    rounds = [_of_line(line) for line in lines]
    listed = lru_cache(maxsize=64)(clients_of)
    asked = {each.asked for each in rounds}
    clients = sorted({client for ranges in asked for client in listed(ranges)}, key=natural_order)
    numbers = sorted({each.server_round for each in rounds})
    if not clients:
        return None
    words = sorted({word for each in rounds for word, _ in each.runs})
    if len(clients) > MOST_CLIENTS or len(words) > MOST_WORDS:
        raise ValueError(f"more than {MOST_CLIENTS:,} clients or {MOST_WORDS} decisions")
    row_of, column_of = _cells(len(clients)), _cells(len(numbers))
    places = {client: n for n, client in enumerate(clients)}
    columns = {number: int(cell) for number, cell in zip(numbers, column_of, strict=True)}
    code = {word: n for n, word in enumerate(words)}
    counts = np.zeros((len(words), row_of[-1] + 1, column_of[-1] + 1), np.int32)

    @lru_cache(maxsize=64)
    def rows(ranges: tuple[str, ...]) -> NDArray[np.intp]:
        found: NDArray[np.intp] = row_of[[places[client] for client in listed(ranges)]]
        return found

    for each in rounds:
        codes_here, times = ([code[word] for word, _ in each.runs], [count for _, count in each.runs])
        decided: NDArray[np.intp] = np.repeat(np.array(codes_here, np.intp), times)
        here = np.bincount(decided * counts.shape[1] + rows(each.asked), minlength=counts[:, :, 0].size)
        counts[:, :, columns[each.server_round]] += here.reshape(counts.shape[:2])
    first, last = _ends(clients, row_of)
    first_round, last_round = _ends(numbers, column_of)
    return Participation(first, last, first_round, last_round, tuple(words), counts)


def _of_line(line: Mapping[str, Any]) -> RoundDecisions:
    if is_packed(line):
        return RoundDecisions.of(line)
    client, decision = line.get("client-id"), line.get("decision")
    if not (isinstance(client, str) and isinstance(decision, str) and isinstance(line.get("round"), int)):
        raise ValueError("it is no decision")
    return RoundDecisions(line["round"], (client,), ((decision, 1),))


def _cells(number: int) -> NDArray[np.intp]:
    """Return the cell of each of several things in a row: cells of equal size, at most `MOST`."""
    return np.arange(number) // -(-number // MOST)


def _ends(things: Sequence[Any], cells: NDArray[np.intp]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first and the last thing of each cell."""
    first = [int(n) for n in np.flatnonzero(np.diff(cells, prepend=-1))]
    last = [*(n - 1 for n in first[1:]), len(things) - 1]
    return tuple(things[n] for n in first), tuple(things[n] for n in last)
