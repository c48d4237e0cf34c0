"""Checkpoints hold the model and whatever a strategy carries."""

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedappeal.settings.config import ConfigError
from server.checkpoints import Checkpoint


def record(**arrays: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name.replace("_", "/"): Array(array) for name, array in arrays.items()})


def full(server_round: int = 7) -> Checkpoint:
    state = RecordDict(
        {
            "volunteers": ConfigRecord({"gone": ["a", "b"], "none": [], "flag": True, "name": "x", "n": 3, "f": 0.1}),
            "weights": MetricRecord({"a": 1, "b": 0.5, "list": [1.5, 2.5], "ints": [1, 2]}),
            "control": record(w=np.arange(4.0, dtype=np.float32), layer_bias=np.array(3.5)),
            "empty": ArrayRecord(),
        }
    )
    initial = record(w=np.zeros((2, 2), np.float32), n=np.array(5), h=np.ones(3, np.float16))
    model = record(w=np.arange(4, dtype=np.float32).reshape(2, 2), n=np.array(6), h=np.zeros(3, np.float16))
    return Checkpoint(server_round, initial, model, state)


def assert_same_arrays(one: ArrayRecord, other: ArrayRecord) -> None:
    assert set(one) == set(other)
    for name, array in other.items():
        assert one[name].numpy().dtype == array.numpy().dtype
        assert one[name].numpy().shape == array.numpy().shape
        np.testing.assert_array_equal(one[name].numpy(), array.numpy())


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    written = full()
    written.write(tmp_path / "c.safetensors")
    read = Checkpoint.read(tmp_path / "c.safetensors")
    assert read.server_round == 7
    assert_same_arrays(read.initial, written.initial)
    assert_same_arrays(read.arrays, written.arrays)
    assert set(read.state) == set(written.state)
    for name in ("volunteers", "weights"):
        assert type(read.state[name]) is type(written.state[name])
        values, expected = dict(read.state[name]), dict(written.state[name])
        assert values == expected
        assert {k: type(v) for k, v in values.items()} == {k: type(v) for k, v in expected.items()}
    for name in ("control", "empty"):
        assert_same_arrays(read.state.array_records[name], written.state.array_records[name])


def test_a_checkpoint_holds_the_model_once_and_the_initial_one_is_written_once(tmp_path: Path) -> None:
    size = 4 * 100_000
    initial, model = (record(w=np.full(100_000, value, np.float32)) for value in (0.0, 1.0))
    for server_round in (1, 2):
        Checkpoint(server_round, initial, model, RecordDict()).write(tmp_path / f"{server_round}.safetensors")
        if server_round == 1:
            written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("initial-*")}
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("initial-*")} == written
    assert len(written) == 2
    assert size < (tmp_path / "2.safetensors").stat().st_size < 1.01 * size
    assert_same_arrays(Checkpoint.read(tmp_path / "2.safetensors").initial, initial)


def test_a_kill_while_writing_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.safetensors"
    full(1).write(path)

    def die(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            full(2).write(path)
    assert Checkpoint.read(path).server_round == 1


def test_a_checkpoint_that_is_not_there_or_broken_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(ConfigError, match="cannot be read"):
        Checkpoint.read(path)
    full().write(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="cannot be read"):
        Checkpoint.read(path)
