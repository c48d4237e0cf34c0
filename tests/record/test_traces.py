"""What a run's folder holds of a client: the rounds that it joined, and what descends from its updates."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import server.server_run
from fedappeal.cli.commands import cli
from fedappeal.record.traces import holding_rounds
from fedappeal.settings.config import RunConfig
from fedappeal.system.files import write_safetensors
from server.build import Plugins, run_plugins
from strategies import FedAvg
from tests.grid import MemoryGrid, Volunteer, time_of


@pytest.mark.parametrize(
    ("joined", "back", "holding"),
    [
        ([3], {}, {3, 4, 5, 6}),
        ([], {}, set()),
        ([2, 4], {}, {2, 3, 4, 5, 6}),
        ([3], {4: 2}, {3}),  # the run went back to a model before it
        ([3], {5: 3}, {3, 4, 5, 6}),
        ([3, 5], {4: 0}, {3, 5, 6}),
        ([4], {4: 3}, set()),  # its only round is undone at once
    ],
)
def test_models_descend_from_the_first_round_on_unless_the_run_went_back(
    joined: list[int], back: dict[int, int], holding: set[int]
) -> None:
    history = [{"round": n, **({"rolled_back_to": float(back[n])} if n in back else {})} for n in range(1, 7)]
    assert holding_rounds(history, joined) == holding


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of six rounds; anna joins the last two, ben all, carl none."""
    monkeypatch.setattr(Plugins, "build", lambda plugins: FedAvg())
    initial, out = tmp_path / "initial.safetensors", tmp_path / "run"
    write_safetensors(initial, {"w": np.zeros(3, np.float32)}, {})
    clients = [
        Volunteer("anna", decision=lambda config: int(config["server-round"] >= 5)),
        Volunteer("ben"),
        Volunteer("carl", decision=0),
    ]
    grid = MemoryGrid(dict(enumerate(clients, 10)))
    config = RunConfig(clients=3, rounds=6, out=str(out), initial_model=str(initial), start_timeout=20.0)
    with time_of(grid):
        server.server_run.run(grid, run_plugins(config))
    return out


def shown(path: Path, client: str) -> list[str]:
    done = CliRunner().invoke(cli, ["show", str(path), "--client", client], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return [" ".join(line.split()) for line in done.output.splitlines()]


def test_the_rounds_and_the_files_are_named(run: Path) -> None:
    lines = shown(run, "anna")
    assert lines[:4] == [
        "client anna",
        "joined 5-6 (2 of the 6 rounds that asked it)",
        "sat-out 1-4",
        "weight of its updates: not recorded",
    ]
    held = {line.split(": ")[1] for line in lines if line.startswith("descends from its updates")}
    assert held == {
        "checkpoint-5.safetensors (round 5)",
        "checkpoint.safetensors (round 6)",
        "model.safetensors (round 6)",
    }
    free = {line.split(": ")[1].split("-")[0] for line in lines if line.startswith("holds nothing of its updates")}
    assert free == {"checkpoint", "initial"}, "that of round 4, and w_0"
    assert any(line.startswith("began from") and "initial.safetensors" in line for line in lines)


def test_one_that_never_joined_has_left_nothing_in_a_model(run: Path) -> None:
    lines = shown(run, "carl")
    assert "joined none (0 of the 6 rounds that asked it)" in lines
    assert not any("descends from" in line for line in lines)
    assert sum("descends from" in line for line in shown(run, "ben")) == 4


def test_a_file_that_says_no_round_and_a_client_of_no_run(run: Path) -> None:
    write_safetensors(run / "mine.safetensors", {}, {})
    assert "not known mine.safetensors: it says no round" in shown(run, "carl")
    done = CliRunner().invoke(cli, ["show", str(run), "--client", "dora"])
    assert str(done.exception) == "client = 'dora' is not allowed: a client of this run (anna, ben, carl)"
