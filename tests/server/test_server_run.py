"""The server's run around a strategy: what it checks first, and a strategy that ends the run early."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

import server.server_run
from client.app import Clients
from client.outcome import Outcome
from fedappeal.cli.main import main
from fedappeal.protocol import keys
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CHECKPOINT, MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors, write_safetensors
from server.build import Plugins, run_plugins
from strategies import FedAvg
from strategies.rounds.round import Round
from tests.grid import MemoryGrid, Volunteer, time_of

ARRAYS = {"layer.weight": np.zeros((2, 3), np.float32), "layer.bias": np.zeros(2, np.float32)}


class Toy(FedAvg):
    """Refuses layers of one name, and is done after a round."""

    refused = "none"
    last = 99

    def check_model(self, names: Sequence[str]) -> None:
        self.names = list(names)
        if self.refused in names:
            raise ConfigError(f"model = 'auto' is not allowed: layer '{self.refused}' cannot be trained")

    def finish(self, round: Round) -> ArrayRecord | None:
        if round.number == self.last:
            round.end = "all are satisfied"
        return super().finish(round)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    write_safetensors(tmp_path / "initial.safetensors", ARRAYS, {})
    initial = str(tmp_path / "initial.safetensors")
    return RunConfig(clients=2, rounds=6, out=str(tmp_path / "run"), initial_model=initial, start_timeout=20.0)


def federate(strategy: FedAvg, config: RunConfig, monkeypatch: pytest.MonkeyPatch, nodes: int = 2) -> MemoryGrid:
    monkeypatch.setattr(Plugins, "build", lambda plugins: strategy)
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", evaluation={"accuracy": 0.5}) for k in range(nodes)})
    with time_of(grid):
        server.server_run.run(grid, run_plugins(config))
    return grid


def test_the_strategy_sees_the_models_names_before_anything_starts(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = Toy()
    federate(strategy, config, monkeypatch)
    assert strategy.names == ["layer.bias", "layer.weight"]
    strategy.refused = "layer.bias"
    other = config.model_copy(update={"out": config.out + "-2"})
    monkeypatch.setattr(Toy, "start", None)
    with pytest.raises(ConfigError, match=r"^model = 'auto' is not allowed: layer 'layer.bias' cannot be trained$"):
        federate(strategy, other, monkeypatch)
    (event,) = Record(Path(other.out)).events
    assert (event["event"], event["reason"]) == (
        "failed",
        "model = 'auto' is not allowed: layer 'layer.bias' cannot be trained",
    )


def test_a_run_that_its_strategy_ends_says_why_and_is_not_started_again(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(config.out)
    strategy = Toy()
    strategy.last = 3
    federate(strategy, config, monkeypatch)
    assert [line["round"] for line in Record(path).history] == [1, 2, 3]
    end = Record(path).events[-1]
    assert (end["event"], end["round"], end["reason"]) == ("finished", 3, "all are satisfied")
    arrays, values = read_safetensors(path / MODEL)
    assert values["round"] == 3
    assert arrays["layer.weight"].tolist() == [[3.0] * 3] * 2

    # Killed after the last round's checkpoint, before its model was written: all clients may be gone.
    (path / MODEL).unlink()
    grid = federate(Toy(), config.model_copy(update={"resume": True}), monkeypatch, nodes=0)
    assert grid.pushed == []
    assert read_safetensors(path / MODEL)[0]["layer.bias"].tolist() == [3.0, 3.0]
    assert len(Record(path).history) == 3
    events = [(e["event"], e["round"]) for e in Record(path).events if e["event"] in ("resumed", "finished")]
    assert events == [("finished", 3), ("resumed", 3), ("finished", 3)]
    assert Record(path).events[-1]["reason"] == "all are satisfied"


def test_the_command_does_not_resume_a_run_that_its_strategy_ended(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = Toy()
    strategy.last = 2
    federate(strategy, config, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["fedappeal", "resume", config.out])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    held = f"fedappeal: '{config.out}' holds a run that has finished in round 2"
    assert line == f"{held}: all are satisfied; it cannot continue"


def test_an_ordinary_end_has_no_reason(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    federate(Toy(), config, monkeypatch)
    end = Record(Path(config.out)).events[-1]
    assert (end["event"], end["round"], end["reason"]) == ("finished", 6, "")
    assert (Path(config.out) / CHECKPOINT).exists()
    assert RunFolder.open(Path(config.out)).run_key


OF_A_ROUND = {keys.RUN_KEY, keys.LAYOUT, keys.STRATEGY, keys.SERVER_ROUND}


@pytest.mark.parametrize(
    ("settings", "of_training"),
    [
        ({}, set()),
        ({"lr_schedule": "cosine"}, {"learning-rate"}),
        ({"local_rule": "sgd", "tuning_steps": 2, "adaptation_steps": 0, "evaluate_train": True}, set()),
        ({"strategy": "mwfed", "participation": "always"}, {"local-steps", "local-epochs"}),
        (
            {"strategy": "fedalign", "plugins": (("fedalign.epsilon", 0.5),)},
            {"fedalign.epsilon-now", "fedalign.global-loss-now", "fedalign.priority"},
        ),
    ],
)
def test_messages_carry_what_is_the_rounds_own(
    settings: dict[str, Any], of_training: set[str], tmp_path: Path
) -> None:
    """The rest is in the run's configuration, which every client gets once."""
    config = RunConfig(clients=3, rounds=3, mandatory_rounds=1, **settings)
    sent: dict[str, set[str]] = {"train": set(), "evaluate": set()}
    answer = Clients.__call__

    def seen(clients: Clients, message: Message, context: Context) -> Outcome:
        kind = message.metadata.message_type
        if kind in sent:
            sent[kind] |= set(message.content[keys.CONFIG])
        return answer(clients, message, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clients, "__call__", seen)
        simulate(config, RunPlan.of(config, tmp_path / "run").folder({}), Simulation("sequential", threads=1))
    assert sent["train"] == OF_A_ROUND | {keys.MANDATORY} | of_training
    assert sent["evaluate"] == OF_A_ROUND | {keys.SPLIT, keys.FINAL}
