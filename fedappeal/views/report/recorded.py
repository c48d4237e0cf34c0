"""What a report shows of one run beyond its history: read from its folder, checked, bounded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import all_printable
from fedappeal.record.files import PARTICIPATION
from fedappeal.record.reader import Record
from fedappeal.record.snapshot import Snapshot, is_figure
from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.groups import text_of
from fedappeal.views.comparison.runs import RecordedRun
from fedappeal.views.report.participation import Participation, participation_of

MOST_REASONS = 20
MOST_CLIENTS = 400
"""Clients whose metric is shown one by one."""


@dataclass(frozen=True)
class MeasuredClient:
    """What a client measured of the last evaluated model on its test data.

    Attributes:
        client: its id.
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
    participation: Participation | None
    measured: tuple[int, Sequence[MeasuredClient]]
    failures: Sequence[tuple[str, int]]
    facts: Sequence[tuple[str, str]]


def reported(path: Path, run: RecordedRun) -> ReportedRun:
    """Return what a run's folder records.

    Raises:
        ConfigError: a file of it is damaged; one line that names it.
    """
    try:
        participation = participation_of(Record(path).participation)
    except ValueError as error:
        raise ConfigError(f"file '{path / PARTICIPATION}' cannot be read: {error}") from None
    failures = Snapshot(rounds=run.lines).failures.most_common(MOST_REASONS)
    return ReportedRun(run, participation, _measured(path, run), failures, _facts(path))


def _measured(path: Path, run: RecordedRun) -> tuple[int, Sequence[MeasuredClient]]:
    last = Record(path).last_measurements
    if last is None:
        return 0, ()
    required = {line.get("client-id"): line for line in Record(path).requirements}
    clients = [str(client) for client in _list(last, "client-ids")]
    columns = [_list(last, key) for key in ("loss", run.metric.name, "appealed")]
    found = []
    for place, client in enumerate(clients):
        loss, score, appealed = (_number(column[place]) if place < len(column) else None for column in columns)
        line = required.get(client, {})
        found.append(
            MeasuredClient(
                *(client, loss, score, None if appealed is None else bool(appealed)),
                *(_number(line.get("requirement")), str(line.get("of", ""))),
            )
        )
    return int(last.get("round", 0)), found


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
