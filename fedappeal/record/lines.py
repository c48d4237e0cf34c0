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

from fedappeal.data.data_size import check_size
from fedappeal.protocol.foreign_text import all_printable, parse_json, printable
from fedappeal.system.files import replace_file
from fedappeal.system.plain_files import LARGEST, open_plain
from fedappeal.trained.card import CONFIG as CONFIG  # both names are its own: what makes a folder a run's
from fedappeal.trained.card import MODEL as MODEL

HISTORY = "history.jsonl"
PARTICIPATION = "participation.jsonl"
MEASUREMENTS = "measurements.jsonl"
POLICIES = "policies.jsonl"
EVENTS = "events.jsonl"
REQUIREMENTS = "requirements.jsonl"
OWN_MODELS = "own-models"
"""Folder of simulated clients' own models, where memory has no room for them."""
WRITTEN_ON = (EVENTS, POLICIES, HISTORY, PARTICIPATION, MEASUREMENTS)
"""Files of JSON lines to which a run appends, in the order in which a resume rewrites them."""
RESTARTED = "superlink-restarted"
"""The event of a run that a SuperLink continues which has come back."""
CHECKPOINT = "checkpoint.safetensors"
INITIAL = "initial.safetensors"


MOST_ROUNDS = 2**63
MOST_MEASUREMENTS = 10_000_000
"""Measurements that a run writes of single clients, about 540 MB; beyond, those of every second evaluated round,
every third and so on."""
LONGEST_TEXT = 500
"""Characters that are kept of a text in these files: clients and other parties wrote some of them."""
_BLOCK = 1 << 20
"""Bytes that are read at once from a file's end."""
_CHECK = re.compile(rb'(?:, )?"check": "([0-9a-f]{16})"}\Z')
_LONGEST_CHECK = 32
"""Bytes of a line's check, with the end of line."""


@dataclass(frozen=True, slots=True)
class WrittenLine:
    """A line of a file in its written form.

    Attributes:
        number: counted from 1.
        text: the line without its end.
        body: the text without its check.
        check: the check that it states; empty: none.
        problem: how the check is wrong; empty: it fits, or an earlier version wrote the line.
        ended: whether it ends with an end of line; a crash may have cut a last line short.
    """

    number: int
    text: bytes
    body: bytes
    check: bytes
    problem: str
    ended: bool = True

    def parsed(self) -> dict[str, Any]:
        """Return the line's values; errors as `parsed_line`."""
        return parsed_line(self.body)


def parsed_line(body: bytes) -> dict[str, Any]:
    """Return a line's values, with bounded texts without control characters.

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


def split_check(text: bytes) -> tuple[bytes, bytes]:
    """Return a line's text without its check, and the check; empty: it has none."""
    match = _CHECK.search(text, max(0, len(text) - _LONGEST_CHECK))  # a hole's line has many millions of bytes
    return (text, b"") if match is None else (text[: match.start()] + b"}", match[1])


def written_lines(path: Path, unended: bool = False) -> Iterator[WrittenLine]:
    """Yield a file's lines in order, each checked against the line before.

    None where there is no file.

    Args:
        path: the file.
        unended: whether a last line without an end is one, too.

    Raises:
        OSError, ValueError: the file cannot be read, or is too large, or a line of it.
    """
    before: tuple[bytes, ...] = (b"",)
    checked = False
    for number, (text, ended) in enumerate(_texts(path), 1):
        if not (ended or unended):
            return
        body, stated = split_check(text)
        checks = {_check(previous, body): previous for previous in before}
        problem = ""
        if stated and before and stated not in checks:
            problem = "it does not match its checksum"
        elif not stated and checked:
            problem = "it has no checksum"
        yield WrittenLine(number, text, body, stated, problem, ended)
        # Of a changed line, the next one still fits what it was or what it states; of one without, nothing is known.
        before = (stated, *checks) if stated else () if checked else (b"",)
        checked = checked or bool(stated)


def _texts(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield a file's lines without ends, and whether each has one."""
    try:
        file = open(path, "rb", opener=open_plain)  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        check_size(os.fstat(file.fileno()).st_size, "its lines")
        while text := file.readline(LARGEST + 1):
            if len(text) > LARGEST:
                raise ValueError(f"a line is longer than {LARGEST:,} bytes")
            yield text.removesuffix(b"\n"), text.endswith(b"\n")


def seal_lines(lines: Iterable[Mapping[str, object]], previous: bytes = b"") -> Iterator[bytes]:
    """Yield lines' texts, each with its checksum.

    Args:
        lines: what they say.
        previous: the check of the line before.
    """
    for line in lines:
        text = _seal(finite_json(line).encode(), previous)
        previous = split_check(text)[1]
        yield text


def reseal_lines(lines: Iterable[WrittenLine]) -> Iterator[bytes]:
    """Yield the remaining lines of a file with their checks renewed.

    Checks that fitted fit again, others stay wrong.
    """
    previous = b""
    for line in lines:
        text = _seal(line.body, previous) if line.check and not line.problem else line.text
        previous = split_check(text)[1]
        yield text


def rewrite(path: Path, texts: Iterable[bytes], durable: bool = True) -> None:
    """Replace a file's lines; ``durable`` as in `fedappeal.system.files.replace_by`."""
    replace_file(path, b"".join(text + b"\n" for text in texts), durable)


def append_lines(path: Path, lines: Iterable[Mapping[str, object]], durable: bool = False) -> str:
    """Append lines to a file, all or none; return the check of the last.

    A full disk leaves no part of one, which the next line would join.

    Args:
        path: the file.
        lines: what they say.
        durable: whether to wait until the disk has them.
    """
    with open(path, "a+b", buffering=0, opener=open_plain) as out:
        end = out.tell()
        tail = os.pread(out.fileno(), _LONGEST_CHECK, max(0, end - _LONGEST_CHECK))
        previous = split_check(tail.removesuffix(b"\n"))[1]
        text = b"".join(text + b"\n" for text in seal_lines(lines, previous))
        try:
            written = 0
            while written < len(text):
                written += out.write(text[written:])
            if durable:
                os.fsync(out.fileno())
        except OSError as error:
            out.truncate(end)
            error.filename = str(path)
            raise
    return split_check(text.removesuffix(b"\n"))[1].decode()


def last_text(path: Path) -> bytes | None:
    """Return a file's last whole line, read alone; None if it has none.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    tail = b""
    with open(path, "rb", opener=open_plain) as lines:
        start = lines.seek(0, os.SEEK_END)
        while start and tail.count(b"\n") < 2:
            if len(tail) > LARGEST:
                raise ValueError(f"it is longer than {LARGEST:,} bytes")
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


def finite_json(line: Mapping[str, object]) -> str:
    """Return a line as JSON, with null for infinity and NaN."""
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
