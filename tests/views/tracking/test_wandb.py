"""Weights & Biases in its offline mode: the file that `wandb sync` would send is read back."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedappeal
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from tests.later import Later

wandb_records = Later("wandb.proto.wandb_internal_pb2")
BLOCK = 32768
QUICK: dict[str, Any] = {"model": "logistic", "clients": 3, "rounds": 3, "local_steps": 2, "requirement": "fixed"}


def records(file: Path) -> list[Any]:
    return [wandb_records.Record.FromString(content) for content in written(file.read_bytes())]


def written(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's form: parts in blocks of 32 kB, each after checksum, length and kind."""
    assert data.startswith(b":W&B")
    at, whole = 7, b""
    while at < len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            yield whole
            whole = b""


def items(update: Any) -> dict[str, Any]:
    return {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in update}


def test_the_offline_file_holds_rounds_settings_tags_and_the_model(tmp_path: Path) -> None:
    run = fedappeal.simulate(
        "maxfl",
        out=tmp_path / "run",
        track="wandb",
        quiet=True,
        set={"wandb.mode": "offline", "wandb.project": "mine"},
        **QUICK,
    )
    (file,) = run.path.glob("wandb/offline-run-*/run-*.wandb")
    found = records(file)
    rows = [items(record.history.item) for record in found if record.WhichOneof("record_type") == "history"]
    history = Record(run.path).history
    for row, line in zip(rows, history, strict=True):
        wanted = {key: value for key, value in line.items() if isinstance(value, int | float) and key != "round"}
        assert row.pop("_step") == line["round"]
        assert {key: value for key, value in row.items() if not key.startswith("_")} == wanted
    (begun, *_) = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    assert (begun.project, begun.display_name) == ("mine", "run")
    assert set(begun.tags) == {"strategy:maxfl", "task:digits", "seed:0"}
    config = items(begun.config.update)
    assert config["maxfl.server-lr"] == 1.0
    assert config["local-steps"] == 2
    assert config["tags"]["run-key"]
    artefacts = [
        record.request.log_artifact.artifact
        for record in found
        if record.request.WhichOneof("request_type") == "log_artifact"
    ]
    artefacts += [record.artifact for record in found if record.WhichOneof("record_type") == "artifact"]
    (content,) = artefacts[-1].manifest.contents
    assert (artefacts[-1].type, content.path) == ("model", MODEL)
    assert content.size == (run.path / MODEL).stat().st_size


def test_a_continued_run_is_one_run_of_wandb(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    given: dict[str, Any] = {"track": "wandb", "set": {"wandb.mode": "offline"}}
    run = fedappeal.simulate("maxfl", out=tmp_path / "run", quiet=True, **given, **QUICK)
    fedappeal.load(run.path, **given).resume(rounds=5)
    assert [text for warned in recwarn if "is dropped" in (text := str(warned.message))] == []
    files = sorted(run.path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1
    steps = [
        items(record.history.item)["_step"]
        for file in files
        for record in records(file)
        if record.WhichOneof("record_type") == "history"
    ]
    assert steps == [1, 2, 3, 4, 5]
