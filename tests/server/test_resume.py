"""Whole runs of the server with the real ClientApp, in memory: what a run leaves behind, and resume."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

import client.app
import client.registry
from fedappeal.files import read_safetensors, write_safetensors
from fedappeal.protocol.config import ConfigError, RunConfig
from server.checkpoint import Checkpoint
from server.run import run
from server.run_folder import CHECKPOINT, EVENTS, HISTORY, MODEL, PARTICIPATION, RunFolder, read_lines
from server.strategies import build_strategy
from strategies import FedAvg, MaxFL
from strategies.roll_call import RollCallError
from tests.grid import Handler, MemoryGrid, time_of

CONFIG = RunConfig(
    clients=5,
    unseen_clients=1,
    clients_per_round=3,
    rounds=6,
    mandatory_rounds=2,
    warmup_steps=15,
    local_steps=10,
    start_timeout=20.0,
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    client.registry.forget()
    yield
    client.registry.forget()


def volunteer(config: RunConfig, number: int) -> Handler:
    node = {"partition-id": number, "num-partitions": config.clients + config.unseen_clients, "device": "cpu"}
    context = Context(7, 100 + number, node, RecordDict(), config.as_config())

    def answer(message: Message) -> Message:
        return client.app.app(message, context)

    return answer


def federate(config: RunConfig) -> MemoryGrid:
    """Run the server with clients that remember nothing from before."""
    total = config.clients + config.unseen_clients
    grid = MemoryGrid({100 + k: volunteer(config, k) for k in range(total)})
    with time_of(grid):
        run(grid, config)
    return grid


def changed(config: RunConfig, **values: object) -> RunConfig:
    return RunConfig.parse(config.as_config() | {k.replace("_", "-"): v for k, v in values.items()})


def test_a_run_stopped_and_resumed_is_the_undisturbed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = changed(CONFIG, out=str(tmp_path / "whole"))
    federate(whole)

    write = Checkpoint.write

    def killed(self: Checkpoint, path: Path, durable: bool = True) -> None:
        if self.server_round == 4:
            raise RuntimeError("killed")  # after the lines of round 4, before its checkpoint
        write(self, path, durable)

    halved = changed(CONFIG, out=str(tmp_path / "halved"))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", killed)
        with pytest.raises(RuntimeError, match="killed"):
            federate(halved)
    assert [line["round"] for line in read_lines(tmp_path / "halved" / HISTORY)] == [1, 2, 3, 4]
    assert Checkpoint.read(tmp_path / "halved" / CHECKPOINT).server_round == 3
    key = RunFolder.open(tmp_path / "halved").run_key
    client.registry.forget()
    federate(changed(halved, resume=True))
    assert RunFolder.open(tmp_path / "halved").run_key == key

    one, other = (read_lines(tmp_path / name / PARTICIPATION) for name in ("whole", "halved"))
    assert one == other
    assert {line["decision"] for line in one} >= {"joined", "sat-out"}
    for name in ("round", "joined", "sat_out", "gm_appeal", "evaluated", "bytes_down", "bytes_up"):
        pair = [[line[name] for line in read_lines(tmp_path / run / HISTORY)] for run in ("whole", "halved")]
        assert pair[0] == pytest.approx(pair[1])
    models = [read_safetensors(tmp_path / name / MODEL) for name in ("whole", "halved")]
    assert models[0][1] == models[1][1] == {"round": 6, "task": "digits"}
    for name, array in models[0][0].items():
        np.testing.assert_allclose(models[1][0][name], array, atol=1e-6)
    kinds = [e["event"] for e in read_lines(tmp_path / "halved" / EVENTS)]
    assert [k for k in kinds if k in ("failed", "resumed", "finished")] == ["failed", "resumed", "finished"]


def test_a_run_learns_and_leaves_its_lines(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path), clients_per_round=0, strategy="fedavg", participation="always")
    federate(changed(config, learning_rate=0.3))
    lines = read_lines(tmp_path / HISTORY)
    expected = {"round", "asked", "joined", "sat_out", "left", "failed", "surplus", "gm_appeal", "loss", "accuracy"}
    expected |= {
        "preferred_accuracy",
        "unseen_accuracy",
        "evaluated",
        "expected",
        "bytes_up",
        "bytes_down",
        "seconds",
    }
    for line in lines:
        assert expected <= set(line)
        assert (line["asked"], line["joined"], line["evaluated"], line["expected"]) == (5, 5, 6, 6)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert len(read_lines(tmp_path / PARTICIPATION)) == 6 * 5


def test_the_initial_model_may_come_from_a_file(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path / "a"), rounds=1, mandatory_rounds=1)
    federate(config)
    arrays, _ = read_safetensors(tmp_path / "a" / MODEL)
    federate(changed(config, out=str(tmp_path / "b"), initial_model=str(tmp_path / "a" / MODEL)))
    first = Checkpoint.read(tmp_path / "b" / CHECKPOINT).initial["flat"].numpy()
    assert sorted(first.tolist()) == sorted(v for a in arrays.values() for v in a.ravel().tolist())
    write_safetensors(tmp_path / "wrong.safetensors", {**arrays, "more": np.ones(2, np.float32)}, {})
    # A file that is not there is the server's to refuse; another model, the clients': the server has no torch.
    refusals = {"missing.safetensors": "missing.safetensors", "wrong.safetensors": "layout .* does not match"}
    for wrong, reason in refusals.items():
        out = tmp_path / f"run-{wrong}"
        with pytest.raises((ConfigError, RollCallError), match=reason):
            federate(changed(config, out=str(out), initial_model=str(tmp_path / wrong)))
        last = read_lines(out / EVENTS)[-1]
        assert last["event"] == "failed"
        assert re.search(reason, last["reason"])


def test_clients_with_another_task_are_refused_with_their_reason(tmp_path: Path) -> None:
    config = changed(CONFIG, out=str(tmp_path))
    grid = MemoryGrid({100 + k: volunteer(changed(config, seed=9), k) for k in range(6)})
    with time_of(grid), pytest.raises(RollCallError, match=r"0 of 6 clients .*task and partition settings"):
        run(grid, config)
    events = read_lines(tmp_path / EVENTS)
    assert [e["event"] for e in events] == ["refused"] * 6 + ["failed"]


def test_a_strategy_is_built_from_the_settings() -> None:
    built = build_strategy(changed(CONFIG, server_lr=0.5, stabilizer=0.2, tuning_steps=3, evaluate_every=4, seed=8))
    assert isinstance(built, MaxFL)
    assert (built.server_lr, built.stabilizer, built.tuning_steps) == (0.5, 0.2, 3)
    assert (built.clients_per_round, built.min_available_nodes, built.mandatory_rounds) == (3, 6, 2)
    assert (built.evaluate_every, built.seed, built.start_timeout) == (4, 8, 20.0)
    other = build_strategy(RunConfig(strategy="fedavg"))
    assert isinstance(other, FedAvg)
    assert (other.clients_per_round, other.mandatory_rounds) == (None, None)
    with pytest.raises(ConfigError, match=r"strategy = 'maxfll' is not allowed: .*\(did you mean 'maxfl'\?\)"):
        build_strategy(RunConfig(strategy="maxfll"))
