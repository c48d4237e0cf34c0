"""A recording tells which field differs, a last bit from another result, and a file that is missing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.recording.comparing import DIFFERENT, EQUAL, WITHIN, compare, read, write
from tests.recording.fingerprint import NEEDED, Fingerprint, Incomplete, fingerprint

ROUND = {"round": 1, "joined": 2, "loss": 0.5, "accuracy": 0.25, "gm_appeal": 1.0, "seconds": 0.1}


def run_folder(folder: Path, line: dict[str, Any] = ROUND, weight: float = 1.0, key: str = "a1") -> Path:
    """Write what a run of one round leaves, as far as it is recorded."""
    folder.mkdir()
    config = {"settings": {"rounds": 1, "out": str(folder)}, "run-key": key, "runtime": {"kind": "local"}}
    (folder / "config.json").write_text(json.dumps(config))
    for name, lines in {
        "history.jsonl": [line],
        "participation.jsonl": [{"round": 1, "asked": ["client-0000"], "decisions": ["j"]}],
        "events.jsonl": [{"time": 1.5, "event": "finished", "round": 1}],
    }.items():
        (folder / name).write_text("".join(json.dumps(each) + "\n" for each in lines))
    arrays = {"w": np.array([weight, 2.0], np.float32)}
    save_file(arrays, folder / "model.safetensors")
    records = json.dumps({f"state/{key}": {"kind": "MetricRecord", "values": {"mean": weight}}})
    save_file(arrays, folder / "checkpoint.safetensors", {"fedappeal": json.dumps({"round": 1, "records": records})})
    return folder


@pytest.fixture
def recorded(tmp_path: Path) -> Fingerprint:
    return fingerprint(run_folder(tmp_path / "recorded"))


def test_the_clock_the_folder_and_the_runs_key_are_not_recorded(recorded: Fingerprint, tmp_path: Path) -> None:
    now = fingerprint(run_folder(tmp_path / "now", {**ROUND, "seconds": 9.0, "check": "0f"}, key="b2"))
    result = compare(recorded, now)
    assert (result.verdict, result.added) == (EQUAL, [])


def test_a_last_bit_is_told_from_another_result(recorded: Fingerprint, tmp_path: Path) -> None:
    near = compare(recorded, fingerprint(run_folder(tmp_path / "near", {**ROUND, "loss": 0.5 + 1e-9}, 1.0 + 2**-23)))
    assert near.verdict == WITHIN
    assert {"history.jsonl: loss", "model.safetensors: w", "checkpoint.safetensors: w"} <= {*near.bits}
    far = compare(recorded, fingerprint(run_folder(tmp_path / "far", {**ROUND, "loss": 0.5001})))
    assert far.verdict == DIFFERENT
    assert far.different == ["loss = 0.5001, was 0.5", "all_losses = 0.5001, was 0.5", "history.jsonl: loss"]


@pytest.mark.parametrize("line", [{**ROUND, "joined": 3}, {key: ROUND[key] for key in ROUND if key != "joined"}])
def test_another_count_and_a_field_that_is_gone_differ(
    recorded: Fingerprint, tmp_path: Path, line: dict[str, Any]
) -> None:
    now = run_folder(tmp_path / "now", line)
    result = compare(recorded, fingerprint(now))
    assert result.verdict == DIFFERENT
    assert any(line.startswith("history.jsonl: joined") for line in result.different)


def test_a_field_and_a_setting_that_were_added_are_said_and_do_no_harm(recorded: Fingerprint, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "now", {**ROUND, "new_metric": 1.0})
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["new-setting"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    result = compare(recorded, fingerprint(folder))
    assert (result.verdict, result.added) == (EQUAL, ["setting new-setting", "history.jsonl: new_metric"])
    assert compare(fingerprint(folder), recorded).different == [
        "setting new-setting is missing",
        "history.jsonl: new_metric is missing",
    ]


@pytest.mark.parametrize("name", [*NEEDED, "checkpoint.safetensors"])
def test_a_folder_without_one_of_its_files_is_no_run(tmp_path: Path, name: str) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(Incomplete, match=name):
        fingerprint(folder)


def test_a_recording_is_read_as_it_was_written(recorded: Fingerprint, tmp_path: Path) -> None:
    other = fingerprint(run_folder(tmp_path / "other", {**ROUND, "bounded": 1}, 3.0))
    other["settings"] |= {"rounds": True, "more": 0.5}
    recording = {"one": {".": recorded}, "two": {"a": recorded, "b": other}}
    file = tmp_path / "recorded.json"
    write(recording, {"commit": "0"}, {"two": "why"}, file)
    assert read(file) == (recording, {"two": "why"})
