"""What a report shows of one run beyond its history: read from its folder, checked, bounded."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.foreign_text import all_printable
from fedappeal.record.decisions import RoundDecisions, clients_of, is_packed
from fedappeal.record.folder import names_in_data
from fedappeal.record.lines import PARTICIPATION
from fedappeal.record.looks import JOINED, ON_REQUEST, shown_as
from fedappeal.record.reader import Record, Snapshot, is_figure
from fedappeal.settings.config import ConfigError
from fedappeal.system.wording import natural_order
from fedappeal.views.comparison.recorded_runs import RecordedRun
from fedappeal.views.comparison.result import text_of

MOST = 400
"""Cells in each direction: more are finer than a screen."""
MOST_DECIDED = 1_000_000
MOST_WORDS = 32
"""Different decisions; there are six."""


@dataclass(frozen=True)
class DecisionGrid:
    """Decisions by clients and rounds, in cells of several where there are many.

    Attributes:
        clients: by cell, the first client of each; ``client-2`` before ``client-10``.
        last_clients: the last of each.
        rounds: by cell, the first round of each; ``last_rounds``: the last.
        decisions: the words that occur, as the run's folder records them; clients that join a mandatory round join
            on request.
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
        """The joined share of asked clients, by cell; NaN if none was asked."""
        asked = self.counts.sum(axis=0, dtype=np.float64)
        joined = self.counts[[word in (JOINED, ON_REQUEST) for word in self.decisions]].sum(axis=0, dtype=np.float64)
        share: NDArray[np.float64] = np.full(asked.shape, np.nan)
        np.divide(joined, asked, out=share, where=asked > 0)
        return share


def participation_of(lines: Iterable[Mapping[str, Any]], mandatory: Collection[int] = ()) -> DecisionGrid | None:
    """Return the decisions of a run's ``participation.jsonl``; None if no client was asked.

    Args:
        lines: of the file.
        mandatory: rounds in which clients were asked not to opt out.

    Raises:
        ValueError: a line is damaged.
    """
    rounds = [_on_request(decided, mandatory) for decided in map(_of_line, lines)]
    listed = lru_cache(maxsize=64)(clients_of)
    words = sorted({word for decided in rounds for word, _ in decided.runs})
    members: set[str] = set()
    for ranges in {decided.asked for decided in rounds}:
        members.update(listed(ranges))
        if len(members) > MOST_DECIDED or len(words) > MOST_WORDS:  # before more are listed
            raise ValueError(f"more than {MOST_DECIDED:,} clients or {MOST_WORDS} decisions")
    if not members:
        return None
    clients = sorted(members, key=natural_order)
    numbers = sorted({decided.server_round for decided in rounds})
    row_of, column_of = _cells(len(clients)), _cells(len(numbers))
    places = {client: n for n, client in enumerate(clients)}
    columns = {number: int(cell) for number, cell in zip(numbers, column_of, strict=True)}
    code = {word: n for n, word in enumerate(words)}
    counts = np.zeros((len(words), row_of[-1] + 1, column_of[-1] + 1), np.int32)

    @lru_cache(maxsize=64)
    def rows(ranges: tuple[str, ...]) -> NDArray[np.intp]:
        return np.array(row_of[[places[client] for client in listed(ranges)]])

    for decided in rounds:
        codes = np.array([code[word] for word, _ in decided.runs], np.intp)
        cells = np.repeat(codes, [count for _, count in decided.runs]) * counts.shape[1] + rows(decided.asked)
        here = np.bincount(cells, minlength=counts[:, :, 0].size)
        counts[:, :, columns[decided.server_round]] += here.reshape(counts.shape[:2])
    first, last = _ends(clients, row_of)
    first_round, last_round = _ends(numbers, column_of)
    return DecisionGrid(first, last, first_round, last_round, tuple(words), counts)


def _on_request(decided: RoundDecisions, mandatory: Collection[int]) -> RoundDecisions:
    if decided.server_round not in mandatory:
        return decided
    return replace(decided, runs=tuple((shown_as(word, True), count) for word, count in decided.runs))


def _of_line(line: Mapping[str, Any]) -> RoundDecisions:
    if is_packed(line):
        return RoundDecisions.of(line)
    client, decision = line.get("client-id"), line.get("decision")
    if not (isinstance(client, str) and isinstance(decision, str) and isinstance(line.get("round"), int)):
        raise ValueError("it is no decision")
    return RoundDecisions(line["round"], (client,), ((decision, 1),))


def _cells(number: int) -> NDArray[np.intp]:
    """Return each item's cell: cells of equal size, at most `MOST`."""
    return np.arange(number) // -(-number // MOST)


def _ends(things: Sequence[Any], cells: NDArray[np.intp]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first and the last item of each cell."""
    first = [int(n) for n in np.flatnonzero(np.diff(cells, prepend=-1))]
    last = [*(n - 1 for n in first[1:]), len(things) - 1]
    return tuple(things[n] for n in first), tuple(things[n] for n in last)


MOST_REASONS = 20
MOST_CLIENTS = 400
"""Clients whose metric is shown one by one."""


@dataclass(frozen=True)
class MeasuredClient:
    """A client's measurements of the last evaluated model on its test data.

    Attributes:
        client: its name, else its id.
        loss: in nats, or as the task's loss says.
        score: the task's metric.
        appealed: whether the model met its requirement; None where it was not told.
        requirement: rho_k, which only a simulation knows; ``of``: of which number.
    """

    client: str
    loss: float | None
    score: float | None
    appealed: bool | None
    requirement: float | None = None
    of: str = ""


@dataclass(frozen=True)
class ReportedRun:
    """One run, as a report shows it.

    Attributes:
        run: its settings and history.
        participation: who decided what, when; None where no client was asked.
        measured: the round of the last evaluated model, and its clients.
        failures: reasons, and how often each occurred; the most frequent first.
        facts: when, where and with which versions it was run: label and text.
    """

    run: RecordedRun
    participation: DecisionGrid | None
    measured: tuple[int, Sequence[MeasuredClient]]
    failures: Sequence[tuple[str, int]]
    facts: Sequence[tuple[str, str]]

    @property
    def judged_otherwise(self) -> bool:
        """Whether clients judge the model as they use it, of which no client's measurement is recorded."""
        holds_out = self.run.settings.get("judge-on", "train") != "train"
        return holds_out and any(key.startswith("adapted_") for line in self.run.lines for key in line)


NO_NAMES: Mapping[str, str] = MappingProxyType({})


def reported_run(path: Path, run: RecordedRun, names: Mapping[str, str] = NO_NAMES) -> ReportedRun:
    """Return the content of a run's folder for its report.

    Args:
        path: the folder.
        run: its history.
        names: in place of client-ids; of other clients those that the run records.

    Raises:
        ConfigError: a file of it is damaged; one line that names it.
    """
    names = {**names_in_data(Record(path).config), **names}
    try:
        mandatory = {int(line["round"]) for line in run.lines if line.get("mandatory")}
        participation = participation_of(Record(path).participation, mandatory)
    except ValueError as error:
        raise ConfigError(f"file '{path / PARTICIPATION}' cannot be read: {error}") from None
    if participation is not None:
        first, last = ([names.get(c, c) for c in ids] for ids in (participation.clients, participation.last_clients))
        participation = replace(participation, clients=tuple(first), last_clients=tuple(last))
    failures = Snapshot(rounds=run.lines).failures.most_common(MOST_REASONS)
    return ReportedRun(run, participation, _clients(path, run, names), failures, _facts(path))


def _clients(path: Path, run: RecordedRun, names: Mapping[str, str]) -> tuple[int, Sequence[MeasuredClient]]:
    last = Record(path).last_measurements
    if last is None:
        return 0, ()
    required = {line["client-id"]: line for line in Record(path).requirements}
    clients = [str(client) for client in _list(last, "client-ids")]
    columns = [_list(last, key) for key in ("loss", run.metric.name, "appealed")]
    measured = []
    for place, client in enumerate(clients):
        loss, score, appealed = (_number(column[place]) if place < len(column) else None for column in columns)
        line = required.get(client, {})
        met, rho = None if appealed is None else bool(appealed), _number(line.get("requirement"))
        of = str(line.get("of", ""))
        measured.append(MeasuredClient(names.get(client, client), loss, score, met, rho, of))
    return int(last.get("round", 0)), measured


def _list(line: Mapping[str, Any], key: str) -> list[Any]:
    value = line.get(key, [])
    return value if isinstance(value, list) else []


def _number(value: object) -> float | None:
    return float(value) if is_figure(value) else None


def _facts(path: Path) -> list[tuple[str, str]]:
    record: dict[str, Any] = all_printable(Record(path).config, 300)
    facts = [("started", str(record.get("started", "")))]
    for key in ("runtime", "versions"):
        if isinstance(values := record.get(key), dict):
            facts += [(f"{key}: {name}", text_of(value)) for name, value in values.items()]
    if isinstance(resumptions := record.get("resumptions"), list):
        facts.append(("continued", f"{len(resumptions)} times" if len(resumptions) != 1 else "once"))
    return [(name, text) for name, text in facts if text]
