"""TensorBoard: the event files are read back by TensorBoard itself."""

from pathlib import Path
from typing import Any

import pytest

import fedappeal
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.views.tracking.tracker import TRACKERS, TrackedRun
from tests.later import Later

reader = Later("tensorboard.backend.event_processing.event_accumulator")
QUICK: dict[str, Any] = {"model": "logistic", "clients": 3, "rounds": 3, "local_steps": 2, "requirement": "fixed"}


def read(folder: Path) -> Any:
    events = reader.EventAccumulator(str(folder), size_guidance={reader.SCALARS: 0, reader.TENSORS: 0})
    return events.Reload()


def test_event_files_hold_every_column_of_every_round(tmp_path: Path) -> None:
    run = fedappeal.simulate("maxfl", out=tmp_path / "run", track="tensorboard", quiet=True, **QUICK)
    fedappeal.load(run.path, track="tensorboard").resume(rounds=5)
    events = read(run.path / "tensorboard")
    history = Record(run.path).history
    assert len(history) == 5
    columns = {key for line in history for key, value in line.items() if isinstance(value, int | float)} - {"round"}
    assert {"gm_appeal", "accuracy", "joined", "bytes_up", "seconds"} <= columns
    for column in columns:
        found = [(event.step, float(event.tensor_proto.float_val[0])) for event in events.Tensors(column)]
        wanted = [(line["round"], pytest.approx(float(line[column]))) for line in history if column in line]
        assert found == wanted, column
    texts = {
        tag: [e.tensor_proto.string_val[0].decode() for e in events.Tensors(f"{tag}/text_summary")]
        for tag in ("tags", "model", "ended")
    }
    assert "| strategy | maxfl |" in texts["tags"][0]
    assert texts["model"] == [str(run.path / MODEL)] * 2
    assert texts["ended"] == ["finished", "finished"]
    settings = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"maxfl.server-lr" in settings
    assert b"local-steps" in settings


def test_event_files_of_all_runs_can_be_in_one_folder(tmp_path: Path) -> None:
    for seed in (0, 1):
        fedappeal.simulate(
            "maxfl",
            out=tmp_path / f"s{seed}",
            track="tensorboard",
            seed=seed,
            quiet=True,
            set={"tensorboard.folder": str(tmp_path / "all")},
            **QUICK,
        )
    assert [len(read(tmp_path / "all" / name).Tensors("loss")) for name in ("s0", "s1")] == [3, 3]
    assert not (tmp_path / "s0" / "tensorboard").exists()


def test_a_runs_folder_does_not_say_where_the_files_lie(tmp_path: Path) -> None:
    tracker = TRACKERS.load("tensorboard")
    run = TrackedRun(tmp_path / "run", {}, {}, id=str(tmp_path / "elsewhere"), after=1)
    assert tracker(tracker.Settings()).begin(run) == str(tmp_path / "run" / "tensorboard")
    assert not (tmp_path / "elsewhere").exists()
