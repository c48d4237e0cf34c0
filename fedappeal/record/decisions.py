"""The decisions of a round as one short line.

The clients in ranges, and a letter a client, in runs.

``{"round": 7, "asked": ["anna", "client-0000:0099"], "decisions": ["sj99s"], "legend": {"j": "joined", ...}}`` says
that clients 0 to 98 joined, and that client 99 and anna sat out. The texts of ``decisions`` belong together.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from string import ascii_letters
from typing import Any

TO = ":"
"""Between the first of a range and the number of its last; it is in no client-id."""
LONGEST = 400
"""Characters of each text of ``decisions``."""
MOST = 1_000_000
"""Decisions of a line."""

_NUMBERED = re.compile(r"(.*?)(\d{1,18})", re.ASCII)
_RUN = re.compile(r"([A-Za-z])(\d{0,8})", re.ASCII)


def is_packed(line: Mapping[str, Any]) -> bool:
    """Whether a line holds all decisions of a round, not only one.

    Runs of earlier versions wrote one each.
    """
    return "legend" in line


def pack_decisions(server_round: int, decisions: Mapping[str, str]) -> dict[str, Any]:
    """Return the line of a round's decisions.

    Args:
        server_round: the round.
        decisions: by client-id.
    """
    order = sorted(decisions, key=_place)
    letters = _letters(decisions.values())
    same = groupby(letters[decisions[client]] for client in order)
    counts = ((letter, sum(1 for _ in clients)) for letter, clients in same)
    runs = "".join(f"{letter}{count if count > 1 else ''}" for letter, count in counts)
    return {
        "round": server_round,
        "asked": list(_ranges(order)),
        "decisions": [runs[i : i + LONGEST] for i in range(0, len(runs), LONGEST)],
        "legend": {letter: word for word, letter in letters.items()},
    }


@dataclass(frozen=True)
class RoundDecisions:
    """The decisions of a round in their packed form.

    Attributes:
        server_round: the round.
        asked: the clients that were asked, in ranges (`clients_of`).
        runs: each decision, and how many clients in turn made it.
    """

    server_round: int
    asked: tuple[str, ...]
    runs: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "RoundDecisions":
        """Return the decisions of a packed line.

        Raises:
            ValueError: the line is damaged.
        """
        if not isinstance(line.get("round"), int):
            raise ValueError("it has no 'round'")
        asked, runs, legend = _texts(line, "asked"), _texts(line, "decisions"), line.get("legend")
        if not (isinstance(legend, dict) and all(isinstance(word, str) for word in legend.values())):
            raise ValueError(f"legend = {str(legend)[:40]!r} is not allowed")
        words = tuple(_words("".join(runs), legend))
        decided, clients = sum(count for _, count in words), sum(len(_span(text)[2]) for text in asked)
        if decided != clients or clients > MOST:  # before there is an object for each
            raise ValueError(f"{clients} clients were asked, and {decided} decided")
        return cls(line["round"], tuple(asked), words)


def clients_of(asked: Iterable[str]) -> list[str]:
    """Return the client-ids of ranges.

    Raises:
        ValueError: a text that is none.
    """
    spans = map(_span, asked)
    return [_client_id(prefix, width, number) for prefix, width, numbers in spans for number in numbers]


def unpack_decisions(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a line's decisions, one each: ``round``, ``client-id`` and ``decision``.

    Raises:
        ValueError: the line is damaged.
    """
    if not is_packed(line):
        return [dict(line)]
    round_decisions = RoundDecisions.of(line)
    decisions = chain.from_iterable(repeat(word, count) for word, count in round_decisions.runs)
    return [
        {"round": round_decisions.server_round, "client-id": client, "decision": decision}
        for client, decision in zip(clients_of(round_decisions.asked), decisions, strict=True)
    ]


def decisions_of(lines: Iterable[Mapping[str, Any]], server_round: int) -> dict[str, str]:
    """Return a round's decisions by client-id.

    From lines of the participation; damaged lines are left out.
    """
    decided: dict[str, str] = {}
    for line in lines:
        if line.get("round") == server_round:
            with suppress(ValueError):
                for one in unpack_decisions(line):
                    decided[str(one.get("client-id", ""))] = str(one.get("decision", ""))
    return decided


def _texts(line: Mapping[str, Any], key: str) -> list[str]:
    values = line.get(key)
    if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
        raise ValueError(f"{key} = {str(values)[:40]!r} is not allowed")
    return values


def _place(client: str) -> tuple[str, int, str]:
    """Return a sort key of clients that makes ranges long.

    ``client-10000`` comes after ``client-9999``.
    """
    numbered = _NUMBERED.fullmatch(client)
    return (numbered[1], len(numbered[2]), numbered[2]) if numbered else (client, 0, "")


def _ranges(clients: list[str]) -> Iterator[str]:
    """Yield ids as ranges, ``client-0003:0007`` for consecutive ones."""

    def follows(place: int) -> tuple[str, int, int]:
        prefix, width, number = _place(clients[place])
        return prefix, width, int(number) - place if width else place

    for (_, width, _), places in groupby(range(len(clients)), follows):
        first, *others = places
        last = clients[others[-1]][-width:] if others else ""
        yield f"{clients[first]}{TO}{last}" if last else clients[first]


def _span(text: str) -> tuple[str, int, range]:
    """Return a range of client-ids: their prefix, the numbers' width, and the numbers."""
    first, _, last = text.partition(TO)
    numbered = _NUMBERED.fullmatch(first)
    if not last:
        return first, 0, range(1)
    if numbered is None or not re.fullmatch(r"\d+", last, re.ASCII) or len(last) != len(numbered[2]):
        raise ValueError(f"{text[:80]!r} is no range of clients")
    return numbered[1], len(last), range(int(numbered[2]), int(last) + 1)


def _client_id(prefix: str, width: int, number: int) -> str:
    return f"{prefix}{number:0{width}d}" if width else prefix


def _letters(words: Any) -> dict[str, str]:
    """Return a letter for each word, its first one if free."""
    letters: dict[str, str] = {}
    for word in sorted(set(words)):
        letters[word] = next(c for c in word + ascii_letters if c in ascii_letters and c not in letters.values())
    return letters


def _words(runs: str, legend: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return each decision with the length of its run."""
    words = _RUN.findall(runs)  # all at once: a large run has millions
    read = sum(len(letter) + len(count) for letter, count in words)
    if read < len(runs) or {letter for letter, _ in words} - set(legend):
        end = 0
        while (run := _RUN.match(runs, end)) and run[1] in legend:
            end = run.end()
        raise ValueError(f"{runs[end : end + 20]!r} is no decision")
    return [(legend[letter], int(count or 1)) for letter, count in words]
