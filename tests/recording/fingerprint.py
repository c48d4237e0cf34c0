"""What is recorded of a run's folder: hashes of its files' contents by field, and a few numbers in clear text."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

Fingerprint = dict[str, Any]
"""Of a run: ``settings`` and ``numbers`` in clear text, and ``parts``: marks by file and field.

A mark is a hash of all there is; where that has floats, hashes or keys, ``~`` and a hash without them follow.
"""

WALL_CLOCK = {
    "history.jsonl": {"seconds"},
    "participation.jsonl": set[str](),
    "measurements.jsonl": set[str](),
    "requirements.jsonl": set[str](),
    "policies.jsonl": set[str](),
    "events.jsonl": {"time", "version", "why", "node", "runtime", "seconds", "process", "device"},
}
"""Of each file of lines, the fields that follow from the clock or the machine, and are not recorded."""
PROOFS = {"check"}
"""Fields of lines that seal them: they follow from the other fields, those of the clock among them."""
OWN_SETTINGS = {"out"}
"""Settings that name this machine's folders."""
NEEDED = ("config.json", "events.jsonl", "history.jsonl", "participation.jsonl", "model.safetensors")
"""Files without which a folder holds no finished run."""
LINES = ("history.jsonl", "participation.jsonl", "measurements.jsonl", "requirements.jsonl", "policies.jsonl")
NUMBERS = ("loss", "accuracy", "gm_appeal", "joined")
_DRAWN = re.compile(r"\b(?:[0-9a-f]{16}|[0-9a-f]{32})\b")
"""A hash of a model or of settings, or a client's secret key."""
_DIGITS = 8
_DIGITS_APART = 3


class Incomplete(Exception):
    """A folder that lacks a file, or holds one that cannot be recorded; says which."""


def fingerprint(run: Path, events: bool = True) -> Fingerprint:
    """Return what is recorded of a finished run.

    Args:
        run: its folder.
        events: whether its events always come alike: not in a run that was broken off, or of several processes.

    Raises:
        Incomplete: a file is missing or damaged.
    """
    for name in (*NEEDED, "checkpoint.safetensors"):
        if not (run / name).is_file():
            raise Incomplete(f"{run}: {name} is missing")
    config = json.loads((run / "config.json").read_text())
    run_key = str(config["run-key"])
    parts: dict[str, dict[str, str]] = {}
    for name in (*LINES, *(["events.jsonl"] if events else [])):
        if (run / name).is_file():
            columns = _columns(_lines(run / name), WALL_CLOCK[name] | PROOFS)
            parts[name] = {key: _mark(values) for key, values in columns.items()}
    rounds = _lines(run / "history.jsonl")
    parts["model.safetensors"] = _arrays(run / "model.safetensors")
    simulated = config.get("runtime", {}).get("kind") == "simulation"
    records = _records(run, run_key, ordered=simulated)
    parts["checkpoint.safetensors"] = _arrays(run / "checkpoint.safetensors") | records
    if simulated:
        parts["memory-first"] = _memory(run / "memory-0.safetensors", run_key)
        parts["memory-last"] = _memory(run / f"memory-{rounds[-1]['round']}.safetensors", run_key)
    return {
        "settings": {key: value for key, value in config["settings"].items() if key not in OWN_SETTINGS},
        "numbers": _numbers(rounds, run / "model.safetensors"),
        "parts": parts,
    }


def _lines(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    if not lines:
        raise Incomplete(f"{file} is empty")
    return lines


def _columns(lines: Sequence[Mapping[str, Any]], unrecorded: set[str]) -> dict[str, list[Any]]:
    """Return each field's values over the lines; what a line lacks is told from null."""
    keys = sorted({key for line in lines for key in line} - unrecorded)
    return {key: [[line[key]] if key in line else [] for line in lines] for key in keys}


def _discrete(value: Any) -> Any:
    """Return a value without its floats and without hashes and keys: what a last bit cannot change."""
    if isinstance(value, float):
        return "float" if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _DRAWN.sub("HASH", value)
    if isinstance(value, list):
        return [_discrete(part) for part in value]
    if isinstance(value, dict):
        return {key: _discrete(part) for key, part in value.items()}
    return value


def _hash(content: bytes, digits: int = _DIGITS) -> str:
    return hashlib.sha256(content).hexdigest()[:digits]


def _mark(value: Any) -> str:
    """Return the mark of a JSON value."""
    whole, apart = (json.dumps(part, sort_keys=True).encode() for part in (value, _discrete(value)))
    return _hash(whole) if whole == apart else f"{_hash(whole)}~{_hash(apart, _DIGITS_APART)}"


def _arrays(file: Path, unrecorded: Iterable[str] = ()) -> dict[str, str]:
    """Return the mark of each array: dtype, shape and bytes."""
    with safe_open(file, framework="numpy") as arrays:
        names = [name for name in arrays.keys() if name not in unrecorded]  # noqa: SIM118
        tensors = {name: arrays.get_tensor(name) for name in names}
    shapes = {name: f"{tensor.dtype} {tensor.shape} ".encode() for name, tensor in tensors.items()}
    return {
        name: f"{_hash(shapes[name] + tensor.tobytes())}~{_hash(shapes[name], _DIGITS_APART)}"
        for name, tensor in tensors.items()
    }


def _records(run: Path, run_key: str, ordered: bool) -> dict[str, str]:
    """Return the marks of what a checkpoint holds beside its arrays.

    Args:
        run: the run's folder.
        run_key: of the run.
        ordered: whether clients always answer in the same order; else lists are sorted.
    """
    with safe_open(run / "checkpoint.safetensors", framework="numpy") as file:
        values = json.loads((file.metadata() or {})["fedappeal"].replace(run_key, "RUN-KEY"))
    records = json.loads(values.pop("records"))
    marked = records if ordered else _sorted(records)
    return {f"records/{name}": _mark(record) for name, record in marked.items()} | {"values": _mark(values)}


def _sorted(value: Any) -> Any:
    """Return a JSON value whose lists are sorted."""
    if isinstance(value, dict):
        return {key: _sorted(part) for key, part in value.items()}
    return sorted(map(_sorted, value), key=json.dumps) if isinstance(value, list) else value


def _memory(file: Path, run_key: str) -> dict[str, str]:
    """Return hashes of what simulated clients remember, arrays and records apart."""
    if not file.is_file():
        raise Incomplete(f"{file} is missing")
    marks = {name.replace(run_key, "RUN-KEY"): mark for name, mark in _arrays(file, ("text",)).items()}
    apart = {name: mark.partition("~")[2] for name, mark in marks.items()}
    with safe_open(file, framework="numpy") as stored:
        text = json.loads(stored.get_tensor("text").tobytes().decode().replace(run_key, "RUN-KEY"))
    judged = [[place, model, noise, _without_places(by_key)] for place, model, noise, by_key in text["judged"]]
    arrays = f"{_mark(marks)}~{_hash(json.dumps(apart, sort_keys=True).encode(), _DIGITS_APART)}"
    records = {"records": json.loads(text["records"]), "alike": text.get("alike", {}), "judged": judged}
    return {"arrays": arrays} | {name: _mark(part) for name, part in records.items()}


def _without_places(evaluations: Mapping[str, Any]) -> list[Any]:
    """Return evaluations under the first word of their keys: the rest is the repr of objects, with their modules."""
    return sorted([re.split(r"\s", key)[0], value] for key, value in evaluations.items())


def _numbers(rounds: Sequence[Mapping[str, Any]], model: Path) -> dict[str, float | None]:
    """Return some numbers of the last round, the losses of all added up, and each tensor's sum and norm together."""
    with safe_open(model, framework="numpy") as file:
        tensors = [file.get_tensor(name).astype("float64") for name in sorted(file.keys())]
    return {
        **{name: rounds[-1].get(name) for name in NUMBERS},
        "all_joined": sum(line.get("joined") or 0 for line in rounds),
        "all_losses": sum(line.get("loss") or 0.0 for line in rounds),
        "model_sum": sum(float(tensor.sum()) for tensor in tensors),
        "model_norm": math.sqrt(sum(float((tensor**2).sum()) for tensor in tensors)),
    }
