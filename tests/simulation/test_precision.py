"""Evaluation in bfloat16: what it changes, counted by hand; how a run records it; what a processor has."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from client.training.models import BFLOAT16
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.simulation import evaluation as precision
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.evaluation import ClientsEvaluation, missing_bfloat16
from fedappeal.simulation.options import Simulation
from fedappeal.tasks.task import ClientData, Split, Task
from tests.simulation.test_evaluation import CLIENTS, SPLITS, TASK, answers, asked, examples

FEATURE = (1 + 2**-9, 1.0, 2.0)
"""Each client's only input. The first is 1 in bfloat16."""


class OneFeature(Task):
    """Two classes with the logits x and 0; all examples are of the first: a client's loss is log(1 + exp(-x))."""

    input_shape, num_classes = (1,), 2

    def initial_model(self, seed: int) -> nn.Module:
        model = nn.Sequential(nn.Linear(1, 2, bias=False))
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([[1.0], [0.0]]))
        return model

    def load(self, client: int) -> ClientData:
        split = Split(torch.full((4, 1), FEATURE[client]), torch.zeros(4, dtype=torch.int64))
        return ClientData(split, split)


def history(
    folder: Path, rounds: int, mode: str, how: str, threads: int = 1, **settings: Any
) -> list[dict[str, Any]]:
    """Return a run's lines; all clients require 0.313, and the model stays as it is."""
    config = RunConfig.parse(
        {
            **{"strategy": "maxfl", "clients": 3, "rounds": rounds, "requirement": "fixed", "fixed.loss": 0.313},
            **{"learning-rate": 1e-12, "mandatory-rounds": 0, "local-steps": 1, "on-empty-round": "keep"},
            **settings,
        }
    )
    run = RunPlan.of(config, folder).folder({})
    task = OneFeature(TaskSettings.parse({"clients": 3}))
    simulate(config, run, Simulation(mode, threads=threads, evaluation_precision=how), task=task)
    return Record(folder).history


@pytest.mark.parametrize(("mode", "threads"), [("layers", 1), ("vmap", 1), ("sequential", 1), ("sequential", 2)])
def test_decisions_that_float32_would_change_are_counted_every_tenth_round(
    mode: str, threads: int, tmp_path: Path
) -> None:
    """log(1 + e^-x) is 0.3133 at 1, 0.3127 at 1 + 2^-9 and 0.1269 at 2: only the first client's decision flips."""
    lines = history(tmp_path / "run", 11, mode, "bfloat16", threads)
    assert [line["joined"] for line in lines] == [1] * 11
    for line in lines:
        counts = line.get("compared_decisions"), line.get("flipped_decisions")
        assert counts == ((3, 1) if line["round"] in (1, 11) else (None, None))
    # All measurements are in bfloat16: the first two clients see the same.
    losses = Record(tmp_path / "run").measurements[-1]["loss"]
    assert losses[0] == losses[1] == pytest.approx(0.3132617, rel=1e-6)


def test_a_run_in_float32_counts_none(tmp_path: Path) -> None:
    lines = history(tmp_path / "run", 1, "auto", "float32")
    assert lines[0]["joined"] == 2
    assert "compared_decisions" not in lines[0]


@pytest.mark.parametrize("settings", [{"participation": "always"}, {"loss-mode": "training"}])
def test_decisions_that_do_not_depend_on_the_precision_are_not_compared(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    lines = history(tmp_path / "run", 1, "layers", "bfloat16", **settings)
    assert lines[0]["joined"] == (3 if "participation" in settings else 2)
    assert "compared_decisions" not in lines[0]


def test_clients_are_measured_as_in_float32_within_bfloat16s_bits() -> None:
    model, of = TASK.initial_model(3), ClientsEvaluation()
    exact = answers(of.of(asked(model), examples(), range(CLIENTS)))
    found = answers(of.of(asked(model, precision=BFLOAT16), examples(), range(CLIENTS)))
    with torch.autocast("cpu", torch.bfloat16):
        by_hand = [nn.functional.cross_entropy(model(split.x).float(), split.y).item() for split in SPLITS]
    for k in range(CLIENTS):
        assert found[k].loss == pytest.approx(by_hand[k], rel=1e-5)
        assert found[k].loss == pytest.approx(exact[k].loss, rel=2**-7)
    assert found != exact


def test_the_runs_folder_records_the_precision_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    history(tmp_path / "run", 1, "layers", "bfloat16")
    runtime = Record(tmp_path / "run").config["runtime"]
    assert runtime["evaluation-precision"] == "bfloat16"
    assert Simulation.of_runtime(runtime).evaluation_precision == "bfloat16"
    del runtime["evaluation-precision"]  # a run that began before there was a choice
    assert Simulation.of_runtime(runtime).evaluation_precision == "float32"


def test_another_precision_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^evaluation-precision = 'bf16' is not allowed: float32, bfloat16$"):
        Simulation(evaluation_precision="bf16")


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        *(("flags : fpu avx2 f16c", True), ("flags : avx512f avx512_bf16", False), ("flags : amx_bf16", False)),
        *(("Features : fp asimd bf16", False), ("Features : fp asimd", True)),
    ],
)
def test_a_processor_without_bfloat16_is_named(
    flags: str, missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name : one\n{flags}\n\n")
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "cpuinfo")
    assert ("no instructions" in missing_bfloat16("cpu")) is missing
    assert missing_bfloat16("cuda") == ""
    said = Simulation(evaluation_precision="bfloat16").notes()
    assert said == ([missing_bfloat16("cpu")] if missing else [])
    assert Simulation().notes() == []
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "none")
    assert missing_bfloat16("cpu") == ""
