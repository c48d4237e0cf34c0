"""Promise: a finite but useless model costs the rounds since the last good one, and no more."""

import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord

from fedappeal.protocol.packing import array_record, view
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import EVENTS, MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.trained import read_card
from server.checkpoints import settings_to_resume
from strategies import FedAvg
from strategies.rounds.round import Round, RoundRecord
from strategies.rounds.sums.last_good import LOST, ROLL_BACKS


class Replaced(FedAvg):
    """FedAvg into whose average a member put a huge model in some rounds: finite; of 1e30 no loss is."""

    name = "replaced"
    rounds: tuple[int, ...] = ()
    scale, value = 0, 1e30

    def update(self, round: Round) -> ArrayRecord:
        updated = super().update(round)
        if round.number not in self.rounds:
            return updated
        arrays = {key: view(array) for key, array in updated.items()}
        return array_record(
            {key: values * self.scale + values.dtype.type(self.value) for key, values in arrays.items()}
        )


def settings(**changed: Any) -> RunConfig:
    chosen = {"task": "digits", "model": "mlp", "clients": 4, "rounds": 6, "participation": "always", "seed": 3}
    chosen |= {"learning-rate": 0.3, "local-steps": 20, "solo.steps": 2}
    return RunConfig.parse(chosen | {key.replace("_", "-"): value for key, value in changed.items()})


def attacked(path: Path, rounds: tuple[int, ...], config: RunConfig, **how: Any) -> Path:
    strategy = Replaced()
    strategy.rounds = rounds
    folder = RunFolder.open(path) if (path / EVENTS).exists() else RunPlan.of(config, path).folder({})
    simulate(config, folder, Simulation("sequential", threads=1), strategy=strategy, **how)
    return path


def backs(path: Path) -> list[tuple[int, int]]:
    events = [line for line in Record(path).events if line["event"] == "rolled-back"]
    assert all((line["finite"], line["answered"]) == (0, 4) for line in events)
    told = [(line["round"], line["to"]) for line in events]
    lines = [line for line in Record(path).history if line.get("rolled_back")]
    assert [(line["round"], line["rolled_back_to"]) for line in lines] == told
    return told


def test_the_run_learns_on_from_the_last_good_model(tmp_path: Path) -> None:
    path = attacked(tmp_path / "run", (3,), settings())
    lines = {line["round"]: line for line in Record(path).history}
    assert backs(path) == [(3, 2)]
    assert "loss" not in lines[3]
    assert lines[6]["accuracy"] > lines[2]["accuracy"] - 0.02
    assert lines[4]["loss"] < lines[2]["loss"]
    assert not (Record(path).standing.end or {})["reason"]


@pytest.mark.parametrize("first", [1, 3])
def test_a_loss_that_is_finite_is_lost_too(tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replaced, "scale", 1e6)
    monkeypatch.setattr(Replaced, "value", 0.0)
    path = attacked(tmp_path / "run", (first,), settings(adaptation_steps=0))
    lines = {line["round"]: line for line in Record(path).history}
    assert math.isfinite(lines[first]["loss"])
    assert lines[first]["loss"] > 1e9
    assert [number for number, line in lines.items() if line.get("rolled_back")] == [first]
    assert lines[first]["rolled_back_to"] == first - 1
    assert lines[6]["loss"] < 1.0


def test_a_run_that_is_stopped_and_continued_goes_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after the useless model came, before clients were asked about it."""
    monkeypatch.setattr("server.recorder.SECONDS_APART", 0.0)
    monkeypatch.setattr("server.recorder.LARGEST_SHARE", 0)
    config = settings(evaluate_every=2)
    whole = attacked(tmp_path / "whole", (3,), config)

    def stop(record: RoundRecord) -> None:
        if record.server_round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attacked(tmp_path / "run", (3,), config, on_round=stop)
    path = attacked(tmp_path / "run", (3,), settings_to_resume(tmp_path / "run"))
    assert backs(path) == backs(whole) == [(4, 2)]
    for name, array in read_safetensors(whole / MODEL)[0].items():
        assert array.tobytes() == read_safetensors(path / MODEL)[0][name].tobytes()


def test_one_that_comes_again_and_again_ends_the_run_with_the_last_good_model(tmp_path: Path) -> None:
    path = attacked(tmp_path / "run", tuple(range(3, 20)), settings(rounds=20))
    assert backs(path) == [(number, 2) for number in range(3, 3 + ROLL_BACKS)]
    assert (Record(path).standing.end or {})["reason"] == LOST
    arrays, values = read_safetensors(path / MODEL)
    assert all(abs(array).max() < 100 for array in arrays.values())
    card, second = read_card(path / MODEL), Record(path).history[1]
    assert card.round == values["round"] == 2
    assert card.figures["accuracy"] == second["accuracy"], "what was measured of this model, not of the useless one"
