"""What a run leaves behind: one folder with its settings, its history and its models.

``config.json`` (every setting, seed and version, the runtime, and each time that the run was continued),
``history.jsonl`` (a line a round), ``participation.jsonl`` (the same: `fedappeal.record.decisions`),
``measurements.jsonl`` (a line a round: what each client measured), ``policies.jsonl`` (client-id and policy, where
the run mixes policies), ``events.jsonl`` (arrivals, refusals, failures, the end), ``initial.safetensors`` (w_0, of
local runs), ``checkpoint.safetensors`` (what ``fedappeal resume`` continues from; ``checkpoint-ROUND.safetensors``:
the two before it), ``initial-HASH.safetensors`` (w_0 of these; and a copy) and ``model.safetensors`` (the global
model by parameter names). A simulated run leaves its clients' memory too:
`fedappeal.simulation.memory`.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import all_printable, parse_json
from fedappeal.protocol.keys import is_run_key
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.record.lines import EVENTS as EVENTS
from fedappeal.record.lines import HISTORY as HISTORY
from fedappeal.record.lines import LONGEST_TEXT, MOST_ROUNDS, append_lines, rewrite, usable_lines, written_lines
from fedappeal.record.lines import MEASUREMENTS as MEASUREMENTS
from fedappeal.record.lines import PARTICIPATION as PARTICIPATION
from fedappeal.record.lines import POLICIES as POLICIES
from fedappeal.record.lines import read_lines as read_lines
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.files import delete_unfinished, replace_file
from fedappeal.system.locks import InUse, only_process
from fedappeal.system.versions import recorded_versions
from fedappeal.trained.model import CONFIG as CONFIG  # both names are its own: what makes a folder a run's
from fedappeal.trained.model import MODEL as MODEL
from server.build import resolved_settings
from server.given import NOTHING_GIVEN, Given

Usable = Callable[[int], None]
"""Raises ConfigError where what belongs to the checkpoint of a round cannot be read."""

GIVEN = "given"
"""What ``config.json`` calls the record of a program's objects that stood in for names."""
CHECKPOINT = "checkpoint.safetensors"
INITIAL = "initial.safetensors"
_LOCK = ".lock"
COMMAND_LOCK = ".command.lock"
"""Held by a command that has a run's clients and server in other processes, from before it starts any of them."""
_DATE = "%Y-%m-%dT%H:%M:%S%z"


def without_memory(server_round: int) -> None:
    """Say that nothing belongs to a checkpoint but itself: a `Usable`."""


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
        cls,
        path: Path,
        config: RunConfig,
        runtime: Mapping[str, Scalar] = MappingProxyType({}),
        given: Given = NOTHING_GIVEN,
    ) -> "RunFolder":
        """Make the folder of a new run.

        Args:
            path: the folder.
            config: the run's settings.
            runtime: in which runtime it is started, and what a continuation has to know of it; empty: said later.
            given: objects in place of names.

        Raises:
            ConfigError: if it already holds a run or cannot be made.
        """
        check_new(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"out = '{path}' is not allowed: {error.strerror}") from None
        run_key = secrets.token_hex(8)
        folder = cls(path, run_key)
        record = {
            "settings": resolved_settings(config, given),
            keys.RUN_KEY: run_key,
            "versions": recorded_versions(),
            "started": time.strftime(_DATE),
            **({"runtime": dict(runtime)} if runtime else {}),
        }
        with folder.alone():
            check_new(path)  # again: another process may have made its run here meanwhile
            delete_unfinished(path)
            folder._replace_config(record)
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of a run that was started before.

        Raises:
            ConfigError: if it holds no run.
        """
        run_key = read_config(path).get(keys.RUN_KEY)
        if not isinstance(run_key, str) or not is_run_key(run_key):
            raise ConfigError(f"'{path}' is not the folder of a run: its {CONFIG} has no run-key that is allowed")
        return cls(path, run_key)

    @property
    def begun(self) -> bool:
        """Whether a process has run rounds, or tried to, in this folder."""
        return (self.path / EVENTS).exists() or any(self.path.glob("checkpoint*.safetensors"))

    def record(self, **facts: object) -> None:
        """Put facts into ``config.json``, under kebab-case keys, in place of those of the same key."""
        self._replace_config(read_config(self.path) | {key.replace("_", "-"): value for key, value in facts.items()})

    def identify(self, facts: Mapping[str, str]) -> None:
        """Record task and model when a run begins; check them when it continues.

        Args:
            facts: by what each is called: the task's fingerprint, the model's layout.

        Raises:
            ConfigError: for another one than that with which the run began.
        """
        known = read_config(self.path)
        for key, value in facts.items():
            if known.get(key, value) != value:
                raise ConfigError(
                    f"{key} {value} is not that of the run in '{self.path}', {known[key]}: a run continues with the "
                    "task, data settings and model that it began with"
                )
        if not facts.keys() <= known.keys():
            self.record(**facts)

    def record_resumption(self, server_round: int, config: RunConfig) -> None:
        """Put into ``config.json`` that the run continues, and its new total of rounds."""
        record = read_config(self.path)
        total = {"rounds": config.rounds, "schedule-rounds": config.schedule_rounds}
        resumption = {
            "date": time.strftime(_DATE),
            "versions": recorded_versions(),
            "from-round": server_round,
            "to-round": config.rounds,
        }
        settings = {**record["settings"], **total}
        self.record(settings=settings, resumptions=[*record.get("resumptions", []), resumption])

    def _replace_config(self, record: Mapping[str, object]) -> None:
        replace_file(self.path / CONFIG, (json.dumps(record, indent=2) + "\n").encode())

    @contextmanager
    def alone(self, lock: str = _LOCK) -> Iterator[None]:
        """Keep other processes from going on with this run.

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

    def append(self, file: str, *lines: Mapping[str, object]) -> None:
        """Append JSON lines to a file, all or none."""
        append_lines(self.path / file, lines)

    def event(self, kind: str, **facts: object) -> None:
        """Record something that is not a round: an arrival, a refusal, the end."""
        self.append(EVENTS, {"time": round(time.time(), 3), "event": kind, **all_printable(facts, LONGEST_TEXT)})

    def forget_after(self, server_round: int) -> None:
        """Drop lines cut short, and those of later rounds: resume runs these again.

        What happened besides (arrivals, failures, ends) stays in ``events.jsonl``.
        """
        for file in (EVENTS, POLICIES, HISTORY, PARTICIPATION, MEASUREMENTS):
            if (self.path / file).exists():  # a run without a mixture has no policies
                lines = written_lines(self.path / file)
                rewrite(self.path / file, (line for line in lines if not _is_of_later(line, server_round)))


def _is_of_later(line: Mapping[str, Any], server_round: int) -> bool:
    """Whether a line is of a later round; of the events, only that it began."""
    return line.get("event", "round") == "round" and int(line.get("round", 0)) > server_round


def new_path(config: RunConfig) -> Path:
    """Return the folder of a new run that names none: ``runs/DATE-TIME-STRATEGY-TASK``."""
    what = f"{config.strategy}-{config.task}".replace(":", ".")
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{what}"


def check_new(path: Path) -> None:
    """Check that a folder may take a new run.

    Raises:
        ConfigError: if it already holds a run, or is a file.
    """
    if (path / CONFIG).exists():
        raise ConfigError(
            f"out = '{path}' is not allowed: the folder already holds a run (fedappeal resume continues it)"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"out = '{path}' is not allowed: it is not a folder")


def read_config(path: Path) -> dict[str, Any]:
    """Return what ``config.json`` of a run's folder records.

    Raises:
        ConfigError: if the folder holds no run.
    """
    file, record = path / CONFIG, None
    with suppress(OSError, ValueError):
        record = parse_json(file.read_text()) if file.is_file() else None  # a pipe would be waited for
    if not isinstance(record, dict):
        raise ConfigError(f"'{path}' is not the folder of a run: it has no readable {CONFIG}")
    return record


def recorded_settings(path: Path) -> dict[str, Any]:
    """Return the settings that a run's folder records, not checked.

    Raises:
        ConfigError: if the folder holds no run, or records none.
    """
    settings = read_config(path).get("settings")
    if not isinstance(settings, dict) or not {"task", "seed", "strategy", "rounds"} <= settings.keys():
        raise ConfigError(f"'{path}' is not the folder of a run: its {CONFIG} records no settings of a run")
    return settings


def checkpoint_round(path: Path, values: Mapping[str, Scalar]) -> int:
    """Return the round of a checkpoint, from the scalars of its file.

    Raises:
        ConfigError: they name none.
    """
    server_round = values.get("round")
    if type(server_round) is not int or not 0 <= server_round < MOST_ROUNDS:
        raise ConfigError(f"file '{path}' cannot be read: it does not say of which round it is")
    return server_round


def recorded_metric(path: Path) -> Metric:
    """Return the primary metric of a run's task; accuracy where none is recorded yet."""
    try:
        return Metric.of_record(read_config(path).get("metric"))
    except ConfigError:
        return ACCURACY


def how_it_ended(path: Path) -> dict[str, Any] | None:
    """Return the event that ended a run (``round``, ``reason`` of an early end), or None while it is to continue.

    Damaged lines are left out.

    Raises:
        ConfigError: the events cannot be read.
    """
    ended = None
    for line in usable_lines(path / EVENTS)[0]:
        if line.get("event") in ("finished", "resumed"):
            ended = line if line["event"] == "finished" else None
    return {**ended, "round": ended.get("round", 0), "reason": str(ended.get("reason", ""))} if ended else None
