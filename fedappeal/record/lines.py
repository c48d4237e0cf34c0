"""The JSON lines of a run's folder: reading them, and putting damaged ones aside before a run continues."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import all_printable, parse_json, printable
from fedappeal.record.decisions import is_packed, unpacked
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import aside_name, replace_file

HISTORY = "history.jsonl"
PARTICIPATION = "participation.jsonl"
MEASUREMENTS = "measurements.jsonl"
POLICIES = "policies.jsonl"
EVENTS = "events.jsonl"
REQUIREMENTS = "requirements.jsonl"
"""Each client's rho_k, which a simulated run alone knows."""
MOST_ROUNDS = 2**63
_BLOCK = 1 << 20
"""Bytes that are read at once from a file's end."""
LONGEST_TEXT = 500
"""Characters that are kept of a text in these files: clients and other parties wrote some of them."""

_NUMBERS = ("asked", "joined", "sat_out", "left", "evaluated", "bytes_up", "bytes_down", "seconds")
_NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    HISTORY: {"round": int, **dict.fromkeys(_NUMBERS, (int, float))},
    PARTICIPATION: {"round": int, "client-id": str, "decision": str},
    MEASUREMENTS: {"round": int, "client-ids": list},
    POLICIES: {"client-id": str, "policy": str},
    EVENTS: {"event": str},
}
"""Keys of each file's lines on which a run that continues relies."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON-lines file without one cut short by a kill; texts without control characters.

    Of a round's decisions, one line in the file, it returns one line each.

    Raises:
        ConfigError: the file is damaged: one line that names it.
    """
    return list(_read(path, lambda line: unpacked(line) if is_packed(line) else [line]))


def decisions_of(path: Path, server_round: int) -> dict[str, str]:
    """Return a round's decisions by client-id, from a run's folder; errors as `read_lines`."""

    def of_round(line: dict[str, Any]) -> list[dict[str, Any]]:
        if line.get("round") != server_round:
            return []
        if is_packed(line):
            return unpacked(line)
        _check_keys(line, _NEEDED[PARTICIPATION])
        return [line]

    return {str(line["client-id"]): str(line["decision"]) for line in _read(path / PARTICIPATION, of_round)}


def written_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON-lines file as they are written; errors as `read_lines`."""
    return list(_read(path, lambda line: [line]))


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last line of a JSON-lines file; the others are not read. None: it has no whole line.

    Raises:
        ConfigError: the line is damaged, or the file cannot be read; one line that names it.
    """
    if not path.exists():
        return None
    try:
        text = _last_text(path)
        return None if text is None else _line(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"file '{path}' cannot be read: last line: {error}") from None


def _last_text(path: Path) -> str | None:
    """Return what stands before a file's last end of line, back to the one before that."""
    if not path.is_file():
        raise ValueError("it is no file")
    found = b""
    with open(path, "rb") as lines:
        start = lines.seek(0, os.SEEK_END)
        while start and found.count(b"\n") < 2:
            start, size = max(0, start - _BLOCK), min(_BLOCK, start)
            lines.seek(start)
            found = lines.read(size) + found
    *whole, _ = found.split(b"\n")
    return whole[-1].decode(errors="backslashreplace") if whole else None


def _read(path: Path, of: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield what is made of each line."""
    if not path.exists():
        return
    number = 0
    try:
        for text in _texts(path)[:-1]:
            number += 1
            yield from of(_line(text))
    except (OSError, ValueError) as error:
        raise ConfigError(f"file '{path}' cannot be read: {f'line {number}: ' if number else ''}{error}") from None


def usable_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines of a run's file that can be used, and what is wrong with each of the others.

    Raises:
        ConfigError: the file cannot be opened.
    """
    if not path.exists():
        return [], []
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    try:
        *texts, last = _texts(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"file '{path}' cannot be read: {error}") from None
    with suppress(ValueError):  # a kill cuts a line short; one that has lost its end of line alone is whole
        texts += [last] if isinstance(parse_json(last), dict) else []
    for number, text in enumerate(texts, 1):
        try:
            line = _line(text)
            if is_packed(line):
                unpacked(line)
            else:
                _check_keys(line, _NEEDED.get(path.name, {}))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
        else:
            found.append(line)
    return found, problems


def mend_lines(path: Path) -> tuple[Path, str] | None:
    """Leave a file's usable lines, and keep the damaged file beside it; return its path and what is wrong with it.

    None: no line was damaged.

    Raises:
        ConfigError: the file cannot be opened.
    """
    found, problems = usable_lines(path)
    if not problems:
        return None
    aside = aside_name(path)
    shutil.copy2(path, aside)  # a kill from here on leaves the damaged file in its place
    rewrite(path, found)
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return aside, problems[0] + more


def rewrite(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Replace a file's lines."""
    replace_file(path, "".join(_json(line) + "\n" for line in lines).encode())


def append_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Append lines to a file, all or none: a full disk leaves no part of one, which the next line would join."""
    text = "".join(_json(line) + "\n" for line in lines).encode()
    with open(path, "ab", buffering=0) as out:
        end = out.seek(0, 2)
        try:
            written = 0
            while written < len(text):
                written += out.write(text[written:])
        except OSError:
            out.truncate(end)
            raise


def _json(line: Mapping[str, object]) -> str:
    """Return a line as JSON, which has no infinity and no NaN: null stands in their place."""
    try:
        return json.dumps(line, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(line), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _texts(path: Path) -> list[str]:
    """Return the texts between a file's ends of lines; the last one is empty, or cut short."""
    if not path.is_file():
        raise ValueError("it is no file")
    # Bytes that are no UTF-8 are damage of their line alone: no JSON has these characters outside a string.
    return path.read_text(errors="backslashreplace").split("\n")


def _line(text: str) -> dict[str, Any]:
    line = parse_json(text)
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")
    server_round = line.get("round", 0)
    if type(server_round) is not int or not 0 <= server_round < MOST_ROUNDS:
        raise ValueError(f"round = {printable(server_round, 40)} is not a number of a round")
    cleaned: dict[str, Any] = all_printable(line, LONGEST_TEXT)
    return cleaned


def _check_keys(line: Mapping[str, Any], needed: Mapping[str, type | tuple[type, ...]]) -> None:
    for key, kind in needed.items():
        if key not in line:
            raise ValueError(f"it has no '{key}'")
        if not isinstance(line[key], kind):
            raise ValueError(f"{key} = {printable(line[key], 40)} is not allowed")
