"""Compares a run with its recording, and keeps recordings in a file of one line a case."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.recording.fingerprint import Fingerprint

FILE = Path(__file__).with_name("recorded.json")
CLOSE = 1e-6
"""Largest difference of two numbers that count as close, relative to the larger one, or absolute."""
EQUAL, WITHIN, DIFFERENT = "equal", "within 1e-6", "different"


@dataclass
class Comparison:
    """How a run compares with its recording.

    Attributes:
        different: what differs otherwise than in the last bits of floats.
        bits: fields whose floats differ, while all numbers in clear text are close.
        added: fields and settings that the recording does not have.
    """

    different: list[str] = field(default_factory=list)
    bits: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`EQUAL`, `WITHIN` or `DIFFERENT`."""
        return DIFFERENT if self.different else WITHIN if self.bits else EQUAL


def compare(recorded: Fingerprint, now: Fingerprint) -> Comparison:
    """Return how a run's fingerprint compares with the recorded one."""
    result = Comparison()
    _compare_settings(recorded["settings"], now["settings"], result)
    for name in sorted(recorded["parts"].keys() | now["parts"].keys()):
        _compare_part(name, recorded["parts"].get(name), now["parts"].get(name), result)
    for name, number in recorded["numbers"].items():
        if not _close(number, now["numbers"].get(name)):
            result.different.append(f"{name} = {now['numbers'].get(name)}, was {number}")
    if result.different:
        result.different += result.bits
    return result


def _compare_settings(recorded: Mapping[str, Any], now: Mapping[str, Any], result: Comparison) -> None:
    result.added += [f"setting {key}" for key in now if key not in recorded]
    for key, value in recorded.items():
        if key not in now:
            result.different.append(f"setting {key} is missing")
        elif now[key] != value or type(now[key]) is not type(value):
            result.different.append(f"setting {key} = {now[key]!r}, was {value!r}")


def _compare_part(
    name: str, recorded: Mapping[str, str] | None, now: Mapping[str, str] | None, result: Comparison
) -> None:
    if recorded is None or now is None:
        (result.added if recorded is None else result.different).append(
            name if recorded is None else f"{name} is missing"
        )
        return
    result.added += [f"{name}: {key}" for key in now if key not in recorded]
    for key, mark in recorded.items():
        if key not in now:
            result.different.append(f"{name}: {key} is missing")
        elif mark != now[key]:
            bits = "~" in mark and mark.partition("~")[2] == now[key].partition("~")[2]
            (result.bits if bits else result.different).append(f"{name}: {key}")


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    if math.isnan(one) and math.isnan(other):
        return True
    return one == other or math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)


Recording = dict[str, dict[str, Fingerprint]]
"""Fingerprints by case, then by the run's folder."""


def write(recording: Recording, about: Mapping[str, Any], tolerances: Mapping[str, str], file: Path = FILE) -> None:
    """Write a recording.

    Settings that most runs share, and lists of fields, are in the file once.

    Args:
        recording: what is written.
        about: where and of what it was made.
        tolerances: by case, why its bits may differ.
        file: where.
    """
    runs = [run for by_folder in recording.values() for run in by_folder.values()]
    common = _most_common(runs)
    fields: list[list[str]] = []
    texts = []
    for name, by_folder in sorted(recording.items()):
        packed: dict[str, Any] = {folder: _packed(run, common, fields) for folder, run in by_folder.items()}
        entry = {"runs": packed} | ({"tolerance": tolerances[name]} if tolerances.get(name) else {})
        texts.append(f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}")
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {"about": about, "settings": common}.items()]
    lists = ",\n".join(json.dumps(names) for names in fields)
    cases = ",\n".join(texts)
    file.write_text("{" + ",\n".join([*head, f'"fields": [\n{lists}\n]', f'"cases": {{\n{cases}\n}}']) + "}\n")


def read(file: Path = FILE) -> tuple[Recording, dict[str, str]]:
    """Return a recording, and by case why its bits may differ."""
    held = json.loads(file.read_text())
    recording = {
        name: {folder: _unpacked(run, held["settings"], held["fields"]) for folder, run in entry["runs"].items()}
        for name, entry in held["cases"].items()
    }
    return recording, {name: entry["tolerance"] for name, entry in held["cases"].items() if "tolerance" in entry}


def _most_common(runs: list[Fingerprint]) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {}
    for run in runs:
        for key, value in run["settings"].items():
            by_value = counts.setdefault(key, {})
            text = json.dumps(value)
            by_value[text] = by_value.get(text, 0) + 1
    most = {key: max(by_value.items(), key=lambda item: item[1]) for key, by_value in counts.items()}
    return {key: json.loads(text) for key, (text, count) in most.items() if count * 2 > len(runs)}


def _packed(run: Fingerprint, common: Mapping[str, Any], fields: list[list[str]]) -> dict[str, Any]:
    parts = {}
    for name, marks in run["parts"].items():
        names = sorted(marks)
        if names not in fields:
            fields.append(names)
        parts[name] = [fields.index(names), " ".join(marks[key] for key in names)]
    settings = run["settings"]
    other = {
        key: value
        for key, value in settings.items()
        if key not in common or json.dumps(value) != json.dumps(common[key])
    }
    lacks = [key for key in common if key not in settings]
    return {"settings": other, "numbers": run["numbers"], "parts": parts} | ({"lacks": lacks} if lacks else {})


def _unpacked(run: Mapping[str, Any], common: Mapping[str, Any], fields: list[list[str]]) -> Fingerprint:
    lacks = set(run.get("lacks", ()))
    return {
        "settings": {key: value for key, value in common.items() if key not in lacks} | run["settings"],
        "numbers": run["numbers"],
        "parts": {
            name: dict(zip(fields[place], marks.split(" "), strict=True))
            for name, (place, marks) in run["parts"].items()
        },
    }
