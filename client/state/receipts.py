"""Receipts: one line for each reply that left this machine.

A line is written to the disk before its reply is sent. The lines are chained (`fedappeal.record.lines`) and numbered,
so that one that is changed or lost is seen; a whole chain written anew is not. A line names the latest receipt
before it whose reply the SuperLink has taken; a small file beside it names the very latest, so that the
chain's end cannot be lost either. At `MOST_BYTES` the file becomes the earlier one of two, and what that held is
forgotten.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import parse_json
from fedappeal.record.lines import append_lines, written_lines
from fedappeal.system.files import replace_file, state_of
from fedappeal.system.plain_files import read_bytes

SENT, EARLIER, LATEST = "sent.jsonl", "sent.earlier.jsonl", "sent.latest.json"
"""Names in the state folder: the receipts, those before them, and which of them was confirmed last."""
MOST_BYTES = 2 << 20
"""Bytes of each of the two files."""
log = logging.getLogger("fedappeal.client")


@dataclass(frozen=True)
class ReceiptChain:
    """The receipts of a client.

    Attributes:
        receipts: what each line says, the latest last; ``sent``: whether the SuperLink is known to have the reply.
        problem: what is wrong with the chain; empty: nothing.
    """

    receipts: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""


class Receipts:
    """Writes the receipts of the process that holds the folder.

    Args:
        folder: the state folder.
        most: bytes of each of the two files.
        clock: seconds since 1970.
    """

    def __init__(self, folder: Path, most: int = MOST_BYTES, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._path = folder, folder / SENT
        self._most, self._clock = most, clock
        self._number, self._check, self._confirmed = -1, "", 0

    def write(self, receipt: Mapping[str, object]) -> int:
        """Write the receipt of a reply that is about to be sent; return its number.

        Raises:
            OSError, ValueError: it cannot be written; then nothing may be sent.
        """
        if self._number < 0:
            self._begin()
        state = state_of(self._path)
        if state and state.st_size >= self._most:
            os.replace(self._path, self._folder / EARLIER)
            state = None
        if state is None:
            replace_file(self._path, b"", mode=0o600)
        first = {} if state and state.st_size else {"after": self._check}
        number = self._number + 1
        line = {"number": number, "time": round(self._clock(), 3), **receipt, "confirmed": self._confirmed, **first}
        self._check = append_lines(self._path, [line], durable=True)
        self._number = number
        return number

    def confirm(self, number: int) -> None:
        """Take note that the SuperLink has taken a reply."""
        self._confirmed = number
        content = json.dumps({"number": number, "check": self._check}).encode()
        try:  # not forced to the disk: after a power cut the last receipts count as not confirmed
            replace_file(self._folder / LATEST, content, durable=False, mode=0o600)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._folder / LATEST, error)

    def _begin(self) -> None:
        """Take up the chain of receipts.

        What a killed process has half written is cut off: its reply was not sent.
        """
        if self._path.exists():
            content = read_bytes(self._path)
            if (whole := content.rfind(b"\n") + 1) < len(content):
                os.truncate(self._path, whole)
        last = 0
        for _, values, check, _ in _lines(self._folder):
            last, self._check = values.get("number", last + 1), check
        self._confirmed = _latest(self._folder).get("number", 0)
        self._number = max(last, self._confirmed)


def read_receipts(folder: Path) -> ReceiptChain:
    """Read and check the receipts in a state folder."""
    while True:
        written = _written(folder)
        kept = _read(folder, written)
        if written == _written(folder):  # else they were read while one was written
            return kept


def _written(folder: Path) -> tuple[int, ...]:
    states = (state_of(folder / name) for name in (EARLIER, SENT, LATEST))
    return tuple(state.st_mtime_ns if state else 0 for state in states)


@lru_cache(maxsize=1)
def _read(folder: Path, written: object) -> ReceiptChain:
    """Read the receipts; ``written``: when the files were, as a page asks each second."""
    receipts, problems, checks = list[dict[str, Any]](), list[str](), dict[int, str]()
    latest, before, last = _latest(folder), "", 0
    try:
        for name, values, check, fits in _lines(folder):
            number = values.get("number", last + 1)
            if not fits:
                problems.append(f"receipt {number}, or the one before it, was changed or is missing")
            elif (name == SENT and values.get("after", before) != before) or last not in (0, number - 1):
                problems.append(f"receipts before {number} were changed or are missing")
            receipts.append(values)
            checks[number], before, last = check, check, number
    except (OSError, ValueError) as error:
        problems.append(f"the receipts cannot be read: {error}")
    confirmed = {latest.get("number"), *(line.get("confirmed") for line in receipts)}
    if latest and checks.get(latest["number"]) != latest.get("check"):
        problems.append(f"receipt {latest['number']}, which was sent, was changed or is missing")
    elif not latest and confirmed - {0, None}:
        problems.append(f"{LATEST} is missing or damaged")
    sent = tuple({**line, "sent": line.get("number") in confirmed} for line in receipts)
    return ReceiptChain(sent, problems[0] if problems else "")


def _lines(folder: Path) -> Iterator[tuple[str, dict[str, Any], str, bool]]:
    """Yield each line's file, what it says, its check, and whether that fits; errors as `written_lines`."""
    for name in (EARLIER, SENT):
        for line in written_lines(folder / name):
            fits = bool(line.check) and not line.problem
            yield name, line.parsed() if fits else {}, line.check.decode(), fits


def _latest(folder: Path) -> dict[str, Any]:
    """Return the receipt that was confirmed last.

    Empty where none was, or where it cannot be read.
    """
    with suppress(OSError, ValueError):
        content = parse_json(read_bytes(folder / LATEST))
        if isinstance(content, dict) and isinstance(content.get("number"), int):
            return content
    return {}
