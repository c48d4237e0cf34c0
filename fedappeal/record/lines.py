"""JSON lines with chained checksums: how they are written, read, checked and rewritten.

The last key of a line, ``check``, holds the first 16 hexadecimal digits of the SHA-256 of the check of the line
before (nothing for a first one) followed by the line without that key. Lines of earlier versions have none.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import all_printable, parse_json, printable
from fedappeal.system.files import replace_file
from fedappeal.trained.model import CONFIG as CONFIG  # both names are its own: what makes a folder a run's
from fedappeal.trained.model import MODEL as MODEL

HISTORY = "history.jsonl"
PARTICIPATION = "participation.jsonl"
MEASUREMENTS = "measurements.jsonl"
POLICIES = "policies.jsonl"
EVENTS = "events.jsonl"
REQUIREMENTS = "requirements.jsonl"
WRITTEN_ON = (EVENTS, POLICIES, HISTORY, PARTICIPATION, MEASUREMENTS)
"""Files of JSON lines to which a run appends, in the order in which a resume rewrites them."""
CHECKPOINT = "checkpoint.safetensors"
INITIAL = "initial.safetensors"


MOST_ROUNDS = 2**63
LONGEST_TEXT = 500
"""Characters that are kept of a text in these files: clients and other parties wrote some of them."""
_BLOCK = 1 << 20
"""Bytes that are read at once from a file's end."""
_CHECK = re.compile(rb'(?:, )?"check": "([0-9a-f]{16})"}\Z')
_LONGEST_CHECK = 32
"""Bytes of a line's check, with the end of line."""


@dataclass(frozen=True, slots=True)
class WrittenLine:
    """A line of a file, as it is written.

    Attributes:
        number: counted from 1.
        text: the line without its end.
        body: the text without its check.
        check: the check that it states; empty: none.
        problem: how the check is wrong; empty: it fits, or an earlier version wrote the line.
    """

    number: int
    text: bytes
    body: bytes
    check: bytes
    problem: str

    def parsed(self) -> dict[str, Any]:
        """Return what the line says; errors as `parsed_line`."""
        return parsed_line(self.body)


def parsed_line(body: bytes) -> dict[str, Any]:
    """Return what a line without check says: texts bounded, and without control characters.

    Raises:
        ValueError: no JSON object, or a round that is none.
    """
    # Bytes that are no UTF-8 are damage of their line alone: no JSON has these characters outside a string.
    line = parse_json(body.decode(errors="backslashreplace"))
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")
    server_round = line.get("round", 0)
    if type(server_round) is not int or not 0 <= server_round < MOST_ROUNDS:
        raise ValueError(f"round = {printable(server_round, 40)} is not a number of a round")
    cleaned: dict[str, Any] = all_printable(line, LONGEST_TEXT)
    return cleaned


def without_check(text: bytes) -> bytes:
    """Return a line's text without its check."""
    return _CHECK.sub(b"}", text)


def written_lines(path: Path, unended: bool = False) -> Iterator[WrittenLine]:
    """Yield a file's lines, checked against each other; a line that a crash has cut short is none.

    Args:
        path: the file.
        unended: whether a last line that has lost its end alone is one.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    if not path.exists():
        return
    if not path.is_file():
        raise ValueError("it is no file")
    *texts, last = path.read_bytes().split(b"\n")
    if unended and _is_object(last):
        texts.append(last)
    before: tuple[bytes, ...] = (b"",)
    checked = False
    for number, text in enumerate(texts, 1):
        stated = _stated(text)
        body = without_check(text)
        checks = {_check(previous, body): previous for previous in before}
        problem = ""
        if stated and before and stated not in checks:
            problem = "it does not match its checksum"
        elif not stated and checked:
            problem = "it has no checksum"
        yield WrittenLine(number, text, body, stated, problem)
        # Of a changed line, the next one still fits what it was or what it states; of one without, nothing is known.
        before = (stated, *checks) if stated else () if checked else (b"",)
        checked = checked or bool(stated)


def sealed(lines: Iterable[Mapping[str, object]], previous: bytes = b"") -> Iterator[bytes]:
    """Yield the texts of lines, each with its check.

    Args:
        lines: what they say.
        previous: the check of the line before.
    """
    for line in lines:
        text = _seal(_json(line).encode(), previous)
        previous = _stated(text)
        yield text


def resealed(lines: Iterable[WrittenLine]) -> Iterator[bytes]:
    """Yield the texts of lines between which others are left out: checks that fitted fit again, others stay wrong."""
    previous = b""
    for line in lines:
        text = _seal(line.body, previous) if line.check and not line.problem else line.text
        previous = _stated(text)
        yield text


def rewrite(path: Path, texts: Iterable[bytes], durable: bool = True) -> None:
    """Replace a file's lines; ``durable`` as in `fedappeal.system.files.replaced`."""
    replace_file(path, b"".join(text + b"\n" for text in texts), durable)


def append_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Append lines to a file, all or none: a full disk leaves no part of one, which the next line would join."""
    with open(path, "a+b", buffering=0) as out:
        end = out.seek(0, os.SEEK_END)
        out.seek(max(0, end - _LONGEST_CHECK))
        previous = _stated(out.read(_LONGEST_CHECK).removesuffix(b"\n"))
        text = b"".join(text + b"\n" for text in sealed(lines, previous))
        try:
            written = 0
            while written < len(text):
                written += out.write(text[written:])
        except OSError:
            out.truncate(end)
            raise


def last_text(path: Path) -> bytes | None:
    """Return a file's last whole line; the others are not read. None: it has none.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    if not path.is_file():
        raise ValueError("it is no file")
    tail = b""
    with open(path, "rb") as lines:
        start = lines.seek(0, os.SEEK_END)
        while start and tail.count(b"\n") < 2:
            start, size = max(0, start - _BLOCK), min(_BLOCK, start)
            lines.seek(start)
            tail = lines.read(size) + tail
    *whole, _ = tail.split(b"\n")
    return whole[-1] if whole else None


def _check(previous: bytes, body: bytes) -> bytes:
    return hashlib.sha256(previous + body).hexdigest()[:16].encode()


def _seal(body: bytes, previous: bytes) -> bytes:
    comma = b"" if body == b"{}" else b", "
    return body.removesuffix(b"}") + comma + b'"check": "' + _check(previous, body) + b'"}'


def _stated(text: bytes) -> bytes:
    match = _CHECK.search(text, max(0, len(text) - _LONGEST_CHECK))
    return match[1] if match else b""


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


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
