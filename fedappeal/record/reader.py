"""The reader of a run's folder.

Each file's lines, checked and bounded; how the run stands; what is damaged.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from fedappeal.protocol.foreign_text import one_line, parse_json, printable
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.record.decisions import is_packed, unpack_decisions
from fedappeal.record.lines import (
    CHECKPOINT,
    CONFIG,
    EVENTS,
    HISTORY,
    MEASUREMENTS,
    MOST_MEASUREMENTS,
    MOST_ROUNDS,
    OWN_MODELS,
    PARTICIPATION,
    POLICIES,
    REQUIREMENTS,
    RESTARTED,
    WRITTEN_ON,
    WrittenLine,
    last_text,
    parsed_line,
    split_check,
    written_lines,
)
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.files import check, check_memory, read_values
from fedappeal.system.plain_files import check_plain, read_bytes

WAITING, RUNNING, FINISHED, FAILED, INTERRUPTED = "waiting", "running", "finished", "failed", "interrupted"
SUMMED = ("asked", "joined", "sat_out", "left", "absent", "failed", "bytes_up", "bytes_down", "seconds")
"""Columns of the history of which there are totals."""
LONGEST_REASON = 160
"""Characters by which reasons are told apart, and shown."""
_LARGEST = 1e300


class Snapshot:
    """The state of a run.

    Attributes:
        state: `WAITING` for clients, `RUNNING`, `FINISHED`, `FAILED` or `INTERRUPTED`.
        reason: why it failed or ended early; empty where it did not.
        begun: the latest round that began; ``since``: when, in seconds since 1970.
        restarted: when a SuperLink that came back continued the run, in seconds since 1970; 0: none did.
        end: the event that ended the run (``round``, ``reason`` of an early end); None while it is to continue,
            however the latest process left it.
        latest: the latest round's line of the history; empty: no round is over.
        totals: of the columns `SUMMED`.
        failures: reasons for which replies are missing or were left out, and how often each occurred.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = (), rounds: Iterable[Mapping[str, Any]] = ()) -> None:
        self.state, self.reason = WAITING, ""
        self.begun, self.since, self.restarted = 0, 0.0, 0.0
        self.end: dict[str, Any] | None = None
        self.latest: Mapping[str, Any] = {}
        self.totals: Counter[str] = Counter(dict.fromkeys(SUMMED, 0))
        self.failures: Counter[str] = Counter()
        for event in events:
            self.event(event)
        for line in rounds:
            self.round(line)

    def event(self, line: Mapping[str, Any]) -> None:
        """Update the state by a line of the events."""
        kind = line.get("event")
        if kind == "round":
            self.state, self.reason = RUNNING, ""
            self.begun, self.since = int(figure(line.get("round"))), figure(line.get("time"))
        elif kind == "resumed":
            self.state, self.reason, self.end = WAITING, "", None
        elif kind == RESTARTED:
            self.restarted = figure(line.get("time"))
        elif kind in (FINISHED, FAILED, INTERRUPTED):
            self.state, self.reason = str(kind), str(line.get("reason", ""))
            if kind == FINISHED:
                self.end = {**line, "round": line.get("round", 0), "reason": self.reason}

    def round(self, line: Mapping[str, Any]) -> None:
        """Update the state by a line of the history."""
        self.latest = line
        self.totals.update({key: figure(line.get(key)) for key in SUMMED})
        if isinstance(failures := line.get("failures"), dict):
            self.failures.update(one_line(reason, LONGEST_REASON) for reason in failures.values())

    @property
    def last_round(self) -> int:
        """The latest finished round; 0 before the first."""
        return int(self.latest.get("round", 0))

    @property
    def process_end(self) -> str:
        """The end of the run's process: `FINISHED`, `FAILED` or `INTERRUPTED`."""
        return self.state if self.state in (FINISHED, FAILED) else INTERRUPTED


def is_figure(value: object) -> TypeGuard[float]:
    """Whether a value of the history is a number of usual size."""
    return isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < _LARGEST)


def figure(value: object) -> float | int:
    """Return a value if it is a usual number, else 0."""
    return value if is_figure(value) else 0


Line = dict[str, Any]
_NUMBERS = ("asked", "joined", "sat_out", "left", "evaluated", "bytes_up", "bytes_down", "seconds")
_NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    HISTORY: {"round": int, **dict.fromkeys(_NUMBERS, (int, float))},
    PARTICIPATION: {"round": int, "client-id": str, "decision": str},
    MEASUREMENTS: {"round": int, "client-ids": list},
    POLICIES: {"client-id": str, "policy": str},
    EVENTS: {"event": str},
    REQUIREMENTS: {"client-id": str},
}
"""Keys of each file's lines on which a run that continues, or a report, relies."""


class Record:
    """The content of a run's folder; each property reads its file anew.

    Lines that a crash has cut short are left out. Of a damaged file, a property raises ConfigError: one line that
    names the file and the line.

    Attributes:
        path: the folder.
        damage: one line for each file read so far of which a line does not fit its checksum, or a round is lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: dict[str, str] = {}

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``.

        Raises:
            ConfigError: the folder holds no run.
        """
        file, record = self.path / CONFIG, None
        with suppress(OSError, ValueError):
            record = parse_json(read_bytes(file))
        if not isinstance(record, dict):
            raise ConfigError(f"'{self.path}' is not the folder of a run: it has no readable {CONFIG}")
        return record

    def check(self) -> None:
        """Check that the folder holds a run, and neither links nor pipes.

        Errors are those of `config`.
        """
        check_plain(self.path)
        _ = self.config

    @property
    def settings(self) -> dict[str, Any]:
        """The recorded settings, not checked.

        Raises:
            ConfigError: the folder holds no run, or records none.
        """
        settings = self.config.get("settings")
        if not isinstance(settings, dict) or not {"task", "seed", "strategy", "rounds"} <= settings.keys():
            raise ConfigError(f"'{self.path}' is not the folder of a run: its {CONFIG} records no settings of a run")
        return settings

    @property
    def metric(self) -> Metric:
        """The primary metric of the run's task; accuracy where none is recorded yet."""
        try:
            return Metric.of_record(self.config.get("metric"))
        except ConfigError:
            return ACCURACY

    @property
    def history(self) -> list[Line]:
        """The history, a line a round."""
        done = self.last_round  # before the lines: a run that goes on writes meanwhile
        lines = self.lines(HISTORY)
        if lost := _lost(range(1, done + 1), _rounds(lines)):
            self.damage.setdefault(HISTORY, damage_of(self.path / HISTORY, [lost]))
        return lines

    @property
    def last_round(self) -> int:
        """The last finished round by the newest checkpoint and the run's end, as far as they can be read."""
        done = 0
        with suppress(ConfigError):
            done = int(figure((self.standing.end or {}).get("round")))
        with suppress(ConfigError):
            done = max(done, rounds_done(self.path))
        return done

    @property
    def participation(self) -> list[Line]:
        """The lines of decisions as written: packed, or one each in older runs."""
        return self.lines(PARTICIPATION)

    @property
    def decisions(self) -> list[Line]:
        """The decisions, one each: ``round``, ``client-id`` and ``decision``."""
        return self.lines(PARTICIPATION, one_each=True)

    @property
    def measurements(self) -> list[Line]:
        """The clients' measurements, a line an evaluated round, in columns."""
        return self.lines(MEASUREMENTS)

    @property
    def last_measurements(self) -> Line | None:
        """The measurements' last line, read alone; None if it has no whole line."""
        file = self.path / MEASUREMENTS
        if not file.exists():
            return None
        try:
            text = last_text(file)
            return None if text is None else parsed_line(split_check(text)[0])
        except (OSError, ValueError) as error:
            raise ConfigError(f"file '{file}' cannot be read: last line: {error}") from None

    @property
    def policies(self) -> list[Line]:
        """Clients and their policies, where the run mixes policies."""
        return self.lines(POLICIES)

    @property
    def requirements(self) -> list[Line]:
        """The requirements of a simulated run's clients."""
        return self.lines(REQUIREMENTS)

    @property
    def events(self) -> list[Line]:
        """The events besides rounds."""
        return self.lines(EVENTS)

    @property
    def standing(self) -> Snapshot:
        """The run's state and end, by its undamaged events alone."""
        return Snapshot(line for _, line in usable_lines(self.path / EVENTS)[0])

    @property
    def snapshot(self) -> Snapshot:
        """The run's state, with its rounds."""
        return Snapshot((line for _, line in usable_lines(self.path / EVENTS)[0]), self.history)

    def lines(self, name: str, one_each: bool = False) -> list[Line]:
        """Return a file's lines.

        ``one_each``: of a round's decisions, one line each.
        """
        file, lines, number = self.path / name, [], 0
        wrong = []
        try:
            for written in written_lines(file):
                number = written.number
                line = written.parsed()
                if name == REQUIREMENTS:
                    _check_keys(line, _NEEDED[name])
                lines += unpack_decisions(line) if one_each else [line]
                wrong += [f"line {number}: {written.problem}"] if written.problem else []
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"file '{file}' cannot be read: {f'line {number}: ' if number else ''}{error}"
            ) from None
        if wrong:
            self.damage[name] = damage_of(file, wrong)
        return lines


def checkpoint_round(path: Path, values: Mapping[str, Scalar]) -> int:
    """Return the round of a checkpoint, from the scalars of its file.

    Raises:
        ConfigError: they name none.
    """
    server_round = values.get("round")
    if type(server_round) is not int or not 0 <= server_round < MOST_ROUNDS:
        raise ConfigError(f"file '{path}' cannot be read: it does not say of which round it is")
    return server_round


def rounds_done(path: Path) -> int:
    """Return the round of a run's newest checkpoint; 0 without one.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    checkpoint = path / CHECKPOINT
    return checkpoint_round(checkpoint, read_values(checkpoint)) if checkpoint.exists() else 0


def damage_of(file: Path, wrong: Sequence[str]) -> str:
    """Return one line about a file with wrong lines."""
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"file '{file}' is damaged: {wrong[0]}{more} (fedappeal verify shows all)"


def usable_lines(file: Path) -> tuple[list[tuple[WrittenLine, Line]], list[str]]:
    """Return a file's usable lines, and the faults of the others.

    Raises:
        ConfigError: the file cannot be opened.
    """
    usable, problems = [], []
    try:
        for written in written_lines(file, unended=True):
            try:
                line = written.parsed()
                if is_packed(line):
                    unpack_decisions(line)
                else:
                    _check_keys(line, _NEEDED.get(file.name, {}))
            except ValueError as error:
                if written.ended:  # else a crash cut it short
                    problems.append(f"line {written.number}: {error}")
            else:
                usable.append((written, line))
    except (OSError, ValueError) as error:
        raise ConfigError(f"file '{file}' cannot be read: {error}") from None
    return usable, problems


def _check_keys(line: Mapping[str, Any], needed: Mapping[str, type | tuple[type, ...]]) -> None:
    for key, kind in needed.items():
        if key not in line:
            raise ValueError(f"it has no '{key}'")
        if not isinstance(line[key], kind):
            raise ValueError(f"{key} = {printable(line[key], 40)} is not allowed")


def lost_rounds(path: Path, done: int) -> Iterator[tuple[str, str]]:
    """Yield each file that lacks lines of finished rounds, and which rounds, in a few words.

    Args:
        path: the run's folder.
        done: the last finished round.

    Raises:
        ConfigError: a file cannot be opened, or the folder records no settings.
    """
    history = _rounds(line for _, line in usable_lines(path / HISTORY)[0])
    if lost := _lost(range(1, done + 1), history):
        yield HISTORY, lost
    settings, finished = Record(path).settings, [line for number, line in history.items() if number <= done]
    most = MOST_MEASUREMENTS / max(1, *(figure(settings.get(key)) for key in ("rounds", "schedule-rounds")))
    needed = {
        EVENTS: finished,
        PARTICIPATION: [line for line in finished if line["asked"]],
        MEASUREMENTS: [line for line in finished if 0 < line["evaluated"] <= most],
    }
    for name, lines in needed.items():
        written = _rounds(line for _, line in usable_lines(path / name)[0])
        if (path / name).exists() and (lost := _lost(_rounds(lines), written)):  # earlier versions wrote fewer
            yield name, lost


def _rounds(lines: Iterable[Line]) -> dict[int, Line]:
    """Return the lines of rounds by their numbers."""
    return {line["round"]: line for line in lines if line.get("round") and line.get("event", "round") == "round"}


def _lost(needed: Collection[int], written: Collection[int]) -> str:
    """Return which of the needed rounds are not written, in a few words; empty: none."""
    number = len(needed) - sum(server_round in needed for server_round in written)
    if not number:
        return ""
    first = next(server_round for server_round in needed if server_round not in written)
    return f"round {first} is missing" + (f", and {number - 1} more" if number > 1 else "")


def damages(path: Path) -> Iterator[str]:
    """Yield one line for each damaged line or file of arrays, and each file that lacks rounds.

    A line that does not end is damaged too.

    Raises:
        ConfigError: the folder holds no run.
    """
    Record(path).check()
    done = Record(path).last_round  # before the lines: a run that goes on writes meanwhile
    for name in (*WRITTEN_ON, REQUIREMENTS):
        file = path / name
        try:
            for written in written_lines(file, unended=True):
                problem = written.problem
                try:
                    written.parsed()
                except ValueError as error:
                    problem = str(error)
                if not written.ended:
                    problem = "it does not end: a crash cut it short, or something stands behind the last line"
                if problem:
                    yield f"file '{file}' is damaged: line {written.number}: {problem}"
        except (OSError, ValueError) as error:
            yield f"file '{file}' is damaged: {error}"
    with suppress(ConfigError):  # said above
        for name, lost in lost_rounds(path, done):
            yield f"file '{path / name}' is damaged: {lost}"
    for file in sorted((*path.glob("*.safetensors"), *path.glob(f"{OWN_MODELS}/*.safetensors"))):
        try:
            read_values(file)
            check_memory(file)
            check(file)
        except (ConfigError, OSError, ValueError) as error:
            if file.exists():  # else a run that goes on has deleted it
                yield str(error) if isinstance(error, ConfigError) else f"file '{file}' is damaged: {error}"


def unchecked_files(path: Path) -> Iterator[str]:
    """Yield one line for each file without checksums.

    Earlier versions wrote such lines.
    """
    for name in (*WRITTEN_ON, REQUIREMENTS):
        first = count = 0
        with suppress(OSError, ValueError):  # `damages` says why it cannot be read
            for line in written_lines(path / name):
                count = line.number
                if line.check:
                    first = first or count
        if count and first != 1:
            which = f"lines 1 to {first - 1}" if first else "lines"
            yield f"file '{path / name}': its {which} have no checksum: an earlier version wrote them"
