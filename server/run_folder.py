"""What a run leaves behind: one folder with its settings, its history and its models.

``config.json`` (every setting, seed and version), ``history.jsonl`` (a line a round), ``participation.jsonl`` (round,
client-id, decision), ``policies.jsonl`` (client-id and policy, where the run mixes policies), ``events.jsonl``
(arrivals, refusals, failures, the end), ``initial.safetensors`` (w_0, of local runs), ``checkpoint.safetensors``
(what ``fedappeal resume`` goes on from) and ``model.safetensors`` (the global model by parameter names).
"""

import json
import platform
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedappeal.files import replace_file
from fedappeal.locks import InUse, only_process
from fedappeal.protocol.config import ConfigError, RunConfig
from server.build import resolved_settings

CONFIG = "config.json"
HISTORY = "history.jsonl"
PARTICIPATION = "participation.jsonl"
POLICIES = "policies.jsonl"
EVENTS = "events.jsonl"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
INITIAL = "initial.safetensors"
_LOCK = ".lock"

_VERSIONED = ("fedappeal", "flwr", "torch", "torchvision", "numpy", "grpcio", "protobuf")


def recorded_versions() -> dict[str, str]:
    """Return the versions that are recorded with every run."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


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
    def create(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Make the folder of a new run.

        Raises:
            ConfigError: if it already holds a run or cannot be made.
        """
        check_new(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"out = '{path}' is not allowed: {error.strerror}") from None
        run_key = secrets.token_hex(8)
        record = {
            "settings": resolved_settings(config),
            "run-key": run_key,
            "versions": recorded_versions(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        replace_file(path / CONFIG, (json.dumps(record, indent=2) + "\n").encode())
        return cls(path, run_key)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of a run that was started before.

        Raises:
            ConfigError: if it holds no run.
        """
        return cls(path, str(read_config(path)["run-key"]))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from going on with this run.

        Raises:
            ConfigError: one is at it.
        """
        try:
            with only_process(self.path, _LOCK):
                yield
        except InUse as error:
            raise ConfigError(
                f"'{self.path}' holds a run that goes on in process {error.process}: wait for it, or stop it first"
            ) from None

    def append(self, file: str, *lines: Mapping[str, object]) -> None:
        """Append JSON lines to a file and flush them."""
        with open(self.path / file, "a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)

    def event(self, kind: str, **facts: object) -> None:
        """Record something that is not a round: an arrival, a refusal, the end."""
        self.append(EVENTS, {"time": round(time.time(), 3), "event": kind, **facts})

    def forget_after(self, server_round: int) -> None:
        """Drop lines cut short, and those of later rounds: resume runs these again."""
        for file in (EVENTS, POLICIES):
            if (self.path / file).exists():  # a run without a mixture has no policies
                _rewrite(self.path / file, read_lines(self.path / file))
        for file in (HISTORY, PARTICIPATION):
            kept = [line for line in read_lines(self.path / file) if int(line["round"]) <= server_round]
            _rewrite(self.path / file, kept)


def _rewrite(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    replace_file(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


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
        raise ConfigError(f"out = '{path}' is not allowed: the folder already holds a run (fedappeal resume goes on)")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"out = '{path}' is not allowed: it is not a folder")


def read_config(path: Path) -> dict[str, Any]:
    """Return what ``config.json`` of a run's folder records.

    Raises:
        ConfigError: if the folder holds no run.
    """
    try:
        record: dict[str, Any] = json.loads((path / CONFIG).read_text())
    except (OSError, ValueError):
        raise ConfigError(f"'{path}' is not the folder of a run: it has no readable {CONFIG}") from None
    return record


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON-lines file without one cut short by a kill."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def how_it_ended(path: Path) -> dict[str, Any] | None:
    """Return the event that ended a run (``round``, ``reason`` of an early end), or None."""
    return next((line for line in read_lines(path / EVENTS) if line["event"] == "finished"), None)
