"""The models that a client prefers: one a run, the oldest forgotten, each with its card."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from client.state.preferred import KEPT_RUNS, describe_preferred, keep
from client.state.store import DiskStore
from fedappeal.core.local_rule import StoredRecord
from fedappeal.settings.config import RunConfig
from fedappeal.tasks import load_task
from fedappeal.trained.card import ModelCard, read_card

CONFIG = RunConfig()
TASK = load_task(CONFIG.task_settings())


def card(run_key: str, **fields: Any) -> ModelCard:
    told = {"round": 9, "figures": {"accuracy": 0.75, "loss": 0.5}, "measured_on": "", "requirement_met": True}
    return ModelCard.of(TASK, CONFIG, run_key=run_key, **(told | fields))


def arrays(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(2, value, np.float32)}


def test_a_later_run_leaves_the_earlier_ones_model(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    for number, key in enumerate(("first", "second")):
        keep(store, arrays(number), card(key, which="solo" if number else "global"))
    for name, key, value in (
        ("preferred-first", "first", 0),
        ("preferred-second", "second", 1),
        ("preferred", "second", 1),
    ):
        record = store.read(name)
        assert record is not None
        assert record.values["run-key"] == key
        assert record.arrays["w"].tolist() == [value, value]
        assert read_card(store.path(name)).run_key == key


def test_the_oldest_are_forgotten_and_the_newest_stays_though_the_clock_was_set_back(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    for number in range(KEPT_RUNS):
        keep(store, arrays(number), card(f"r{number}"))
        os.utime(store.path(f"preferred-r{number}"), (1000 + number, 1000 + number))
    store.write("run-r0", StoredRecord({"requirement": "", "left-round": 0}))
    keep(store, arrays(-1), card("late"))
    os.utime(store.path("preferred-late"), (1, 1))
    kept = {"preferred", "preferred-late", "run-r0", *(f"preferred-r{n}" for n in range(1, KEPT_RUNS))}
    assert set(store.names()) == kept
    keep(store, arrays(-2), card("late"))
    assert set(store.names()) == kept, "the same run's takes no other's place"


def test_another_servers_run_without_a_key_keeps_the_latest_alone(tmp_path: Path) -> None:
    keep(DiskStore(tmp_path), arrays(0), card(""))
    assert DiskStore(tmp_path).names() == ["preferred"]
    (line,) = describe_preferred(DiskStore(tmp_path))
    assert line.startswith("prefers    the global model (run (no key), ")


def test_status_lists_them_newest_first(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    keep(store, arrays(0), card("a", requirement_met=False))
    keep(store, arrays(1), card("b", which="solo", figures={"accuracy": 0.5}))
    for time, name in enumerate("ab", start=1):
        os.utime(store.path(f"preferred-{name}"), (time, time))
    day = card("").date[:10]
    assert describe_preferred(store) == [
        f"prefers    the solo model (run b, {day}, maxfl on digits, round 9; accuracy 0.5000): "
        f"{tmp_path}/preferred-b.safetensors",
        f"prefers    the global model (run a, {day}, maxfl on digits, round 9; accuracy 0.7500, loss 0.5000, "
        f"requirement not met): {tmp_path}/preferred-a.safetensors",
    ]


def test_a_file_of_another_kind_is_left_out_and_one_of_an_older_version_is_listed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.write("preferred-mine", StoredRecord({}, arrays(0)))
    store.write("preferred", StoredRecord({"which": "solo", "run-key": "old"}, arrays(0)))
    assert describe_preferred(store) == [f"prefers    the solo model (run old): {tmp_path}/preferred.safetensors"]
