"""The writer of a run's folder: settings, lines, what a resume takes back, and how a run continues."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import SHOWN_ID, all_printable, printable
from fedappeal.protocol.keys import is_run_key
from fedappeal.record.lines import (
    CONFIG,
    EVENTS,
    INITIAL,
    LONGEST_TEXT,
    WRITTEN_ON,
    append_lines,
    reseal_lines,
    rewrite,
    written_lines,
)
from fedappeal.record.reader import Record, damage_of, usable_lines
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.files import copy_aside, delete_unfinished, replace_file, written_as
from fedappeal.system.locks import InUse, is_held, only_process
from fedappeal.system.plain_files import check_plain
from fedappeal.system.versions import recorded_versions

Usable = Callable[[int], None]
"""Raises ConfigError where what belongs to the checkpoint of a round cannot be read."""

GIVEN = "given"
"""What ``config.json`` calls the record of a program's objects that stood in for names."""
CLIENTS = "clients"
"""What that record calls the names of clients by client-id."""
_LOCK = ".lock"
"""Held by the process that has a run's rounds."""
COMMAND_LOCK = ".command.lock"
"""Held by a command that has a run's clients and server in other processes, from before it starts any of them."""
_RESUMPTIONS = "resumptions"
_DATE = "%Y-%m-%dT%H:%M:%S%z"


def names_in_data(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the clients' names in a program's data, by client-id; empty without names.

    Args:
        config: what ``config.json`` records.
    """
    given = config.get(GIVEN)
    names = given.get(CLIENTS) if isinstance(given, dict) else None
    if not isinstance(names, dict):
        return {}
    return {client: printable(name, SHOWN_ID) for client, name in names.items()}


def without_memory(server_round: int) -> None:
    """Return that a checkpoint is complete by itself, as a `Usable`."""


class RunFolder:
    """The folder of one run.

    Attributes:
        path: the folder.
        run_key: made once with the run and kept when it is resumed.
    """

    def __init__(self, path: Path, run_key: str) -> None:
        self.path = path
        self.run_key = run_key

    @classmethod
    def create(
        cls, path: Path, settings: Mapping[str, Scalar], runtime: Mapping[str, Scalar] = MappingProxyType({})
    ) -> "RunFolder":
        """Make the folder of a new run.

        Args:
            path: the folder.
            settings: every setting of the run and of its plug-ins.
            runtime: in which runtime it is started, and what a continuation has to know of it; empty: said later.

        Raises:
            ConfigError: if it already holds a run or cannot be made.
        """
        check_new(path)
        check_plain(path, changed=True)
        with written_as("out", path):
            path.mkdir(parents=True, exist_ok=True)
        run_key = secrets.token_hex(8)
        folder = cls(path, run_key)
        record = {
            "settings": dict(settings),
            keys.RUN_KEY: run_key,
            "versions": recorded_versions(),
            "started": time.strftime(_DATE),
            **({"runtime": dict(runtime)} if runtime else {}),
        }
        with written_as("out", path), folder.alone():
            check_new(path)  # again: another process may have made its run here meanwhile
            delete_unfinished(path)
            folder._replace_config(record)
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of a run that was started before.

        Raises:
            ConfigError: if it holds no run, or a link, or a file that has a name elsewhere.
        """
        check_plain(path, changed=True)
        config = Record(path).config
        run_key, resumptions = config.get(keys.RUN_KEY), config.get(_RESUMPTIONS, [])
        if not isinstance(resumptions, list):
            value = printable(resumptions, 40)
            raise ConfigError(f"'{path}' is not the folder of a run: resumptions = {value} in its {CONFIG}")
        if not isinstance(run_key, str) or not is_run_key(run_key):
            raise ConfigError(f"'{path}' is not the folder of a run: its {CONFIG} has no run-key that is allowed")
        return cls(path, run_key)

    @property
    def begun(self) -> bool:
        """Whether a process has run rounds, or tried to, in this folder."""
        return (self.path / EVENTS).exists() or any(self.path.glob("checkpoint*.safetensors"))

    def record(self, **facts: object) -> None:
        """Update facts in ``config.json``, under kebab-case keys."""
        self._replace_config(
            Record(self.path).config | {key.replace("_", "-"): value for key, value in facts.items()}
        )

    def identify(self, facts: Mapping[str, str]) -> None:
        """Record task and model when a run begins; check them when it continues.

        Args:
            facts: by what each is called: the task's fingerprint, the model's layout.

        Raises:
            ConfigError: for another one than that with which the run began.
        """
        recorded = Record(self.path).config
        for key, value in facts.items():
            if recorded.get(key, value) != value:
                raise ConfigError(
                    f"{key} {value} is not that of the run in '{self.path}', {recorded[key]}: a run continues with "
                    "the task, data settings and model that it began with"
                )
        if not facts.keys() <= recorded.keys():
            self.record(**facts)

    def record_resumption(self, server_round: int, config: RunConfig) -> None:
        """Record in ``config.json`` the resumption and the new total of rounds."""
        record = Record(self.path).config
        total = {"rounds": config.rounds, "schedule-rounds": config.schedule_rounds}
        resumption = {
            "date": time.strftime(_DATE),
            "versions": recorded_versions(),
            "from-round": server_round,
            "to-round": config.rounds,
        }
        settings = {**record["settings"], **total}
        self.record(settings=settings, resumptions=[*record.get(_RESUMPTIONS, []), resumption])

    def _replace_config(self, record: Mapping[str, object]) -> None:
        replace_file(self.path / CONFIG, (json.dumps(record, indent=2) + "\n").encode())

    @contextmanager
    def alone(self, lock: str = _LOCK) -> Iterator[None]:
        """Hold the run's lock during the block.

        Args:
            lock: the process that has the rounds holds one lock, its command `COMMAND_LOCK`.

        Raises:
            ConfigError: one is at it.
        """
        try:
            with only_process(self.path, lock):
                yield
        except InUse as error:
            raise ConfigError(
                f"'{self.path}' holds a run that process {error.process} is running: wait for it, or stop it first"
            ) from None

    @staticmethod
    def is_held(path: Path) -> bool | None:
        """Whether a process holds a run's lock; None if this machine cannot tell."""
        return is_held(path, _LOCK)

    @classmethod
    def check_idle(cls, path: Path) -> None:
        """Check that no process runs a run, as far as this machine can tell.

        Raises:
            ConfigError: one does.
        """
        if cls.is_held(path):
            with cls(path, "").alone():
                pass

    def append(self, file: str, *lines: Mapping[str, object]) -> None:
        """Append JSON lines to a file, all or none."""
        append_lines(self.path / file, lines)

    def event(self, kind: str, **facts: object) -> None:
        """Record an event: an arrival, a refusal, the end."""
        self.append(EVENTS, {"time": round(time.time(), 3), "event": kind, **all_printable(facts, LONGEST_TEXT)})

    def forget_after(self, server_round: int) -> None:
        """Delete incomplete lines, and those of later rounds.

        Resume runs these again.

        What happened besides (arrivals, failures, ends) stays in ``events.jsonl``.
        """
        for name in WRITTEN_ON:
            file = self.path / name
            if not file.exists():  # a run without a mixture has no policies
                continue
            try:
                lines = [line for line in written_lines(file) if not _is_later(line.parsed(), server_round)]
            except (OSError, ValueError) as error:
                raise ConfigError(f"file '{file}' cannot be read: {error}") from None
            rewrite(file, reseal_lines(lines))

    def mend(self) -> Iterator[str]:
        """Set damaged files aside, keep their usable lines; yield a line for each.

        Lines that do not fit their checksum are used as they are.

        Raises:
            ConfigError: a file cannot be opened.
        """
        for name in WRITTEN_ON:
            file = self.path / name
            lines, problems = usable_lines(file)
            if problems:
                aside = copy_aside(file)  # a kill from here on leaves the damaged file in its place
                rewrite(file, reseal_lines(line for line, _ in lines))
                reason = problems[0] + (f", and {len(problems) - 1} more" if len(problems) > 1 else "")
                self.event("damaged", file=name, aside=aside.name, reason=reason)
                whole = f"the run continues without these lines, and the whole file is kept as '{aside.name}'"
                yield f"file '{file}' is damaged ({reason}): {whole}"
            wrong = [f"line {line.number}: {line.problem}" for line, _ in lines if line.problem]
            if wrong and (name, wrong[0]) not in self.just_said():
                self.event("damaged", file=name, reason=wrong[0])
                yield damage_of(file, wrong)

    def just_said(self) -> set[tuple[object, object]]:
        """Return the damaged files and reasons named by the last events.

        A command looks before its run does.
        """
        events = (line for _, line in reversed(usable_lines(self.path / EVENTS)[0]))
        damages = takewhile(lambda line: line["event"] == "damaged", events)
        return {(line.get("file"), line.get("reason")) for line in damages}


def _is_later(line: Mapping[str, Any], server_round: int) -> bool:
    """Whether a line is of a later round; an event only of its beginning."""
    return line.get("event", "round") == "round" and int(line.get("round", 0)) > server_round


def new_path(config: RunConfig) -> Path:
    """Return the folder of a new run that names none: ``runs/DATE-TIME-XXXX-STRATEGY-TASK``."""
    return Path("runs") / dated_name(f"{config.strategy}-{config.task}")


def dated_name(name: str) -> str:
    """Return a run's folder name: the time, 4 digits that tell runs of one second apart, and the run's name."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}-{name}".replace(":", ".")


def holds_run(path: Path) -> bool:
    """Whether a folder holds a run's record."""
    return (path / CONFIG).exists()


def check_new(path: Path) -> None:
    """Check that a folder may take a new run.

    Raises:
        ConfigError: if it already holds a run, or is a file.
    """
    if holds_run(path):
        raise ConfigError(
            f"out = '{path}' is not allowed: the folder already holds a run (fedappeal resume continues it)"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"out = '{path}' is not allowed: it is not a folder")


KIND = "kind"
"""Key of a run's runtime under which its name stands."""
LOCAL, SIMULATION, SUBMITTED = "local", "simulation", "submitted"


def is_local(path: Path) -> bool:
    """Whether a run's processes were all this user's on one machine."""
    runtime = Record(path).config.get("runtime")
    return isinstance(runtime, dict) and runtime.get(KIND) == LOCAL


def runtime_of(path: Path) -> dict[str, Any]:
    """Return a run's runtime: its ``kind``, and further facts of ``config.json``.

    Raises:
        ConfigError: if the folder holds no run, or does not say.
    """
    runtime = Record(path).config.get("runtime", {})
    if not isinstance(runtime, dict) or not all(isinstance(value, Scalar) for value in runtime.values()):
        raise ConfigError(f"'{path}' is not the folder of a run: the runtime in its {CONFIG} is no object of scalars")
    if not runtime and (path / INITIAL).exists():  # a local run of a version that did not record it
        return {KIND: LOCAL}
    if runtime.get(KIND) not in (LOCAL, SIMULATION, SUBMITTED):
        raise ConfigError(
            f"'{path}' holds a run that cannot continue: its {CONFIG} does not say how it was started "
            f"({LOCAL}, {SIMULATION}, {SUBMITTED})"
        )
    if not runtime.get("resumable", True):
        raise ConfigError(f"'{path}' holds a simulated run whose clients' memory was not kept: it cannot continue")
    return runtime


def schedule_rounds(folder: RunFolder, rounds: int) -> int:
    """Return the setting ``schedule-rounds`` of a run that continues to a total of rounds."""
    began = RunConfig.parse_recorded(Record(folder.path).settings, ignore_unknown=True)
    return began.schedule_rounds if rounds == began.rounds else began.scheduled_rounds
