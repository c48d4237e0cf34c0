"""Sweeps from a program: what is swept, how runs are told apart, in this process and in others."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedappeal
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from strategies import FedAvg, MaxFL
from tests import warm
from tests.api.blobs import QUICK, Net, in_folder, losses, pairs

__all__ = ["in_folder"]
pytestmark = pytest.mark.usefixtures("in_folder")


def test_every_list_and_range_is_swept_and_the_last_changes_fastest() -> None:
    runs = fedappeal.sweep(
        ["fedavg", MaxFL, MaxFL(server_lr=0.5)], model=Net, data=pairs(), seed=range(2), learning_rate=0.2, **QUICK
    )
    assert [list(each.values()) for each in runs.varied] == [
        ["fedavg", 0],
        ["fedavg", 1],
        ["maxfl", 0],
        ["maxfl", 1],
        ["maxfl(server_lr=0.5)", 0],
        ["maxfl(server_lr=0.5)", 1],
    ]
    assert [run.path.name for run in runs[:2]] == ["strategy-fedavg-seed-0", "strategy-fedavg-seed-1"]
    alone = fedappeal.simulate(MaxFL(server_lr=0.5), model=Net, data=pairs(), seed=1, learning_rate=0.2, **QUICK)
    assert losses(runs[5]) == losses(alone)
    history = runs.history
    assert history.columns[:3].tolist() == ["strategy", "seed", "round"]
    assert len(history) == 18
    assert history[history["strategy"] == "fedavg"]["seed"].tolist() == [0, 0, 0, 1, 1, 1]
    assert runs.clients.columns[:4].tolist() == ["strategy", "seed", "round", "client"]
    assert runs.summary()["accuracy"].iloc[5] == alone.summary()["accuracy"]
    header, *rows = repr(runs).splitlines()[1:]
    assert header.split() == ["strategy", "seed", "rounds", "accuracy", "gm", "appeal", "loss"]
    assert len(rows) == 6
    assert runs._repr_html_().count("<tr>") == 7
    runs.picture().save("curves.svg")
    assert Path("curves.svg").read_text().count("</svg>") == 1
    assert (runs.picture()._repr_png_() or b"")[:4] == b"\x89PNG"
    compared = fedappeal.compare(runs)
    assert set(compared["group"]) >= {"strategy=fedavg"}
    assert isinstance(runs[3].model(), Net)


def test_plug_in_settings_and_models_are_swept_too() -> None:
    runs = fedappeal.sweep(
        "maxfl",
        data=pairs(),
        model=[Net, lambda: nn.Linear(6, 2)],
        **QUICK | {"set": {"maxfl.server_lr": [0.5, 1.0], "solo.steps": 3}},
    )
    assert [each["model"] for each in runs.varied] == ["Net", "Net", "<lambda>", "<lambda>"]
    assert [run.config.section("maxfl")["server-lr"] for run in runs] == [0.5, 1.0, 0.5, 1.0]
    assert [len(list(run.model().parameters())) for run in runs] == [4, 4, 2, 2]
    assert runs[0].path.name == "model-Net-maxfl.server_lr-0.5"


class Nesterov(FedAvg):
    """A strategy with a setting of its own."""

    name = "nesterov"

    class Settings(FedAvg.Settings):  # type: ignore[name-defined,misc]
        """Its settings."""

        beta: float = 0.5


def test_a_run_has_no_settings_of_own_plug_ins_that_only_others_use(recwarn: pytest.WarningsRecorder) -> None:
    name = f"{Nesterov.__module__}:Nesterov"
    runs = fedappeal.sweep(
        ["fedavg", name], data=pairs(), model=Net, **QUICK | {"set": {"nesterov.beta": 0.25, "maxfl.server-lr": 1.0}}
    )
    assert [run.config.section("nesterov").get("beta") for run in runs] == [None, 0.25]
    said = [str(each.message) for each in recwarn if issubclass(each.category, UserWarning)]
    assert "maxfl.server-lr is not used by this run" in said
    assert not any("nesterov" in line for line in said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seed": []}, "seed = [] is not allowed: at least one value"),
        ({"seed": range(20_000)}, "sweep is not allowed: 20000 runs, at most 10000"),
        ({"seed": range(2), "rounds": [1, 0]}, "rounds = 0 is not allowed"),
        ({"strategy": ["fedavg", "nothing"]}, "strategy = 'nothing' is not allowed"),
        ({"strategy": [MaxFL(seed=1)], "seed": range(2)}, "seed is given twice: 0 beside MaxFL(seed=1)"),
        ({"jobs": 0}, "jobs = 0 is not allowed"),
        ({"jobs": "2"}, "jobs = '2' is not allowed: at least 1"),
        ({"jobs": 2, "loss": lambda o, y: o.mean()}, "jobs > 1 is not allowed: an object cannot be sent"),
        ({"jobs": 2, "on_round": print}, "on_round is not allowed with jobs > 1"),
    ],
)
def test_what_is_wrong_with_any_run_is_said_before_the_first(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        fedappeal.sweep(**{"strategy": "fedavg", "data": pairs(), "model": Net} | QUICK | given)
    assert not Path("runs").exists()


def test_ctrl_c_stops_the_sweep_and_returns_the_runs_so_far() -> None:
    def interrupt(each: fedappeal.FinishedRound) -> None:
        if each.run.config.seed == 1 and each.number == 2:
            raise KeyboardInterrupt

    runs = fedappeal.sweep("fedavg", data=pairs(), model=Net, seed=range(4), on_round=interrupt, **QUICK)
    assert [run.rounds for run in runs] == [3, 2]
    assert [run.interrupted for run in runs] == [False, True]
    assert "2 of 3" in repr(runs)


def test_a_folder_that_holds_a_run_is_refused() -> None:
    common: dict[str, Any] = {"data": pairs(), "model": Net, "out": "swept", **QUICK}
    fedappeal.sweep("fedavg", seed=range(2), **common)
    with pytest.raises(ConfigError, match="the folder already holds a run"):
        fedappeal.sweep("fedavg", seed=range(1, 4), **common)
    assert sorted(path.name for path in Path("swept").iterdir()) == ["seed-0", "seed-1"]


def test_processes_give_what_this_one_gives() -> None:
    data = [((torch.ones(4, 6), torch.tensor([0, 1, 0, 1])),) * 2, *pairs(3)]
    common: dict[str, Any] = {"data": data, "model": Net, "seed": range(2), **QUICK}
    here = fedappeal.sweep(MaxFL(server_lr=0.5), **common)
    with warm.warm_spawn():
        there = fedappeal.sweep(MaxFL(server_lr=0.5), jobs=2, **common)
    assert [losses(run) for run in there] == [losses(run) for run in here]
    assert isinstance(there[1].model(), Net)
    assert [Record(run.path).config["given"] for run in there] == [Record(run.path).config["given"] for run in here]


def test_what_a_notebook_defines_cannot_be_sent() -> None:
    # As in a notebook, this program has no file.
    program = """
import torch, fedappeal
class Mine(torch.nn.Linear):
    def __init__(self): super().__init__(6, 2)
pair = torch.zeros(2, 6), torch.tensor([0, 1])
try:
    fedappeal.sweep("fedavg", data=[(pair, pair)], model=Mine, seed=range(2), jobs=2)
except fedappeal.ConfigError as error:
    print(error)
"""
    done = warm.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("jobs > 1 is not allowed with Mine: other processes do not see"), done.stderr
    assert len(done.stdout.splitlines()) == 1
