"""Clients' data loaded when they are needed: the same examples, the same run, and few of them in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedappeal.data.scaling import Scaling
from fedappeal.protocol.keys import TEST_SPLIT, TRAIN_SPLIT
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation import engine
from fedappeal.simulation import pool as pools
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.pool import LazyPool, Pool, clients_data
from fedappeal.system.files import read_safetensors
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets.synth import Synth
from fedappeal.tasks.task import ClientData, Task

CPU = torch.device("cpu")
FEW: dict[str, Any] = {"clients": 12, "clients-per-round": 3, "evaluate-every": 2, "rounds": 4, "mandatory-rounds": 1}
SYNTH: dict[str, Any] = {**FEW, "task": "synth", "synth.examples": 20, "min-examples": 10, "model": "logistic"}
DIGITS: dict[str, Any] = {**FEW, "task": "digits", "min-examples": 10, "model": "mlp", "unseen-clients": 2}


def config(**settings: Any) -> RunConfig:
    return RunConfig.parse({"solo.steps": 5, "local-steps": 3, "batch-size": 8, **settings})


def run(folder: Path, mode: str, settings: dict[str, Any]) -> RunFolder:
    created = RunPlan.of(config(**settings), folder).folder({})
    simulate(config(**settings), created, Simulation(mode, threads=1))
    return created


def told(of: RunFolder) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in Record(of.path).history]


ALL = {**SYNTH, "strategy": "adagd", "clients-per-round": 0, "adagd.precision": 0.05, "adagd.step-size": 0.5}


def test_a_pool_keeps_how_each_clients_table_was_scaled() -> None:
    class Scaled(Synth):
        def load(self, client: int) -> ClientData:
            data = super().load(client)
            return data if client else replace(data, scaling=Scaling((1.0,), (2.0,)))

    pool = Pool(Scaled(config(**SYNTH).task_settings()), range(2), CPU)
    assert (pool.client(0).scaling, pool.client(1).scaling) == (Scaling((1.0,), (2.0,)), None)


@pytest.mark.parametrize("settings", [SYNTH, DIGITS, ALL], ids=["synth", "digits", "gradients"])
@pytest.mark.parametrize("mode", ["layers", "sequential"])
def test_a_run_is_the_same_to_the_bit_when_clients_are_loaded_as_they_are_needed(
    settings: dict[str, Any], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "KEPT", 2)
    used: list[LazyPool] = []

    def lazily(config: RunConfig, task: Task, clients: int, device: torch.device) -> LazyPool:
        used.append(LazyPool(task, device, config.holds_out))
        return used[-1]

    eager = run(tmp_path / "eager", mode, settings)
    assert not used
    monkeypatch.setattr(engine, "clients_data", lazily)
    lazy = run(tmp_path / "lazy", mode, settings)
    assert len(used) == 1
    assert told(eager) == told(lazy)
    assert Record(eager.path).decisions == Record(lazy.path).decisions
    models = [read_safetensors(each.path / MODEL)[0] for each in (eager, lazy)]
    for name, values in models[0].items():
        assert np.array_equal(values, models[1][name]), name


def task_of(settings: dict[str, Any]) -> Task:
    return load_task(config(**settings).task_settings())


@pytest.mark.parametrize("settings", [SYNTH, DIGITS, {**DIGITS, "max-train-examples": 5}])
def test_counts_are_those_of_the_data(settings: dict[str, Any]) -> None:
    task, eager = task_of(settings), Pool(task_of(settings), range(12), CPU)
    lazy = LazyPool(task, CPU)
    for k in range(12):
        assert task.counts(k) == lazy.client(k).counts == eager.client(k).counts
        assert lazy.client(k).fingerprint == eager.client(k).fingerprint


def test_the_clients_used_last_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []

    class Counted(Synth):
        name = "synth"

        def load(self, client: int) -> ClientData:
            loads.append(client)
            return super().load(client)

    task = Counted(config(**SYNTH).task_settings())
    monkeypatch.setattr(pools, "KEPT", 2)
    lazy = LazyPool(task, CPU)
    assert lazy.client(3).counts == (12, 8)
    assert not loads
    for k in (3, 4, 3, 5, 3, 4):
        assert len(lazy.client(k).train) == 12
    assert loads == [3, 4, 5, 4]
    monkeypatch.setattr(pools, "KEPT", 9)
    monkeypatch.setattr(
        pools, "KEPT_BYTES", 3 * 20 * (60 * 4 + 8)
    )  # of three clients: float32 features, int64 labels
    for k in (6, 7, 8, 7, 6, 4):
        assert len(lazy.client(k).test) == 8
    assert loads == [3, 4, 5, 4, 6, 7, 8, 4]


def test_examples_are_those_of_the_clients_that_are_asked_for() -> None:
    lazy, eager = LazyPool(task_of(SYNTH), CPU), Pool(task_of(SYNTH), range(12), CPU)
    found = lazy.examples(TEST_SPLIT, {k: lazy.client(k).test for k in (7, 2)})
    assert [found.span(k) for k in (7, 2)] == [(0, 8), (8, 16)]
    for k in (7, 2):
        mine, theirs = found.of_client(k), eager.examples(TEST_SPLIT, {}).of_client(k)
        assert torch.equal(mine.x, theirs.x)  # type: ignore[arg-type]
        assert torch.equal(mine.y, theirs.y)  # type: ignore[arg-type]
    assert eager.examples(TRAIN_SPLIT, {}) is eager.train


class Twice(Synth):
    """Overrides `load` alone, so that the counts that it inherits are wrong."""

    name = "synth"

    def load(self, client: int) -> ClientData:
        data = super().load(client)
        return ClientData(data.train, data.train)


def test_clients_are_loaded_as_they_are_needed_where_that_is_known_to_be_right_and_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kind(task: type[Synth] = Synth, **changed: Any) -> type:
        settings = config(**{**SYNTH, **changed})
        return type(clients_data(settings, task(settings.task_settings()), settings.clients, CPU))

    assert kind() is Pool  # few clients
    monkeypatch.setattr(pools, "MANY", 11)
    assert kind() is LazyPool
    assert kind(Twice) is Pool
    assert kind(**{"synth.noisy": 2}) is Pool  # noisy clients hold others' kind of data
    assert kind(**{"evaluate-every": 1}) is Pool
    assert kind(**{"clients-per-round": 4}) is Pool
    assert kind(**{"clients-per-round": 0}) is Pool
    with pytest.raises(ConfigError, match=r"client 0 has \(12, 12\) examples to train and test, its counts tell"):
        LazyPool(Twice(config(**SYNTH).task_settings()), CPU).loaded(0)
