"""Simulated runs: the two modes do the same, runs repeat, and what cannot be batched says so."""

import gc
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client.roster import Participants
from client.training.sgd import SGD
from client.training.task_learner import TaskLearner, TaskLearners
from fedappeal.core.local_rule import TrainingJob
from fedappeal.core.registry import LOCAL_RULES
from fedappeal.protocol.packing import Layout
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CHECKPOINT, HISTORY, MODEL, PARTICIPATION
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import choose_mode, simulate
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.pool import Pool
from fedappeal.system.files import read_safetensors
from fedappeal.tasks import load_task
from server.build import run_plugins
from server.checkpoints import Checkpoint
from tests.grid import MemoryGrid
from tests.run_models import learned

SETTINGS: dict[str, Any] = {
    "model": "logistic",
    "clients": 8,
    "unseen-clients": 2,
    "clients-per-round": 4,
    "rounds": 5,
    "mandatory-rounds": 2,
    "local-steps": 6,
    "batch-size": 16,
    "solo.steps": 8,
}

NO_FORM = "has no batched form"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def simulated(folder: Path, mode: str, **settings: Any) -> RunFolder:
    """Run one federation."""
    config = RunConfig.parse(SETTINGS | {k.replace("_", "-"): v for k, v in settings.items()})
    run = RunPlan.of(config, folder).folder({})
    simulate(config, run, Simulation(mode))
    return run


def told(run: RunFolder) -> list[dict[str, Any]]:
    """The history without what depends on the clock."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in Record(run.path).history]


def assert_same_run(a: RunFolder, b: RunFolder, tolerance: float = 1e-5) -> None:
    """Both runs asked the same clients, who decided alike, and ended with the same model to float tolerance."""
    assert Record(a.path).decisions == Record(b.path).decisions
    for mine, other in zip(told(a), told(b), strict=True):
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            assert other[key] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value), (
                key
            )
    models = [read_safetensors(run.path / MODEL)[0] for run in (a, b)]
    for name, values in models[0].items():
        np.testing.assert_allclose(values, models[1][name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "maxfl"},
        {"strategy": "maxfl", "tuning-steps": 2, "adaptation-steps": 0, "rounds": 3},
        {"strategy": "fedavg", "local-steps": 0, "local-epochs": 1, "momentum": 0.5, "weight-decay": 0.01},
        {"strategy": "fedprox", "fedprox.proximal-mu": 0.5},
        {"strategy": "scaffold"},
        {"strategy": "fedalign", "fedalign.epsilon": 0.5},
        {"strategy": "adagd", "clients-per-round": 0, "adagd.precision": 0.05, "adagd.step-size": 0.5},
        {
            **{"strategy": "maxfl-adagd", "clients-per-round": 0},
            **{"maxfl-adagd.precision": 0.05, "maxfl-adagd.step-size": 0.5},
        },
        {"strategy": "qfedavg", "model": "cnn", "rounds": 2},
        {"strategy": "mwfed"},
    ],
    ids=lambda settings: "-".join(str(v) for v in settings.values()),
)
def test_clients_in_batches_do_what_they_do_one_after_another(tmp_path: Path, settings: dict[str, Any]) -> None:
    batched = simulated(tmp_path / "batched", "auto", **settings)
    sequential = simulated(tmp_path / "sequential", "sequential", **settings)
    assert_same_run(batched, sequential)
    lines = told(batched)
    assert sum(line["joined"] for line in lines) > 0
    assert all(line["evaluated"] == 10 for line in lines)
    assert "unseen_gm_appeal" in lines[-1]


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_a_run_repeats_bit_for_bit(tmp_path: Path, mode: str) -> None:
    runs = [simulated(tmp_path / str(i), mode, model="mlp", rounds=3) for i in range(2)]
    assert learned(runs[0].path) == learned(runs[1].path)
    assert told(runs[0]) == told(runs[1])


def test_rules_without_a_batched_form_run_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOCAL_RULES.load("maml"), "batched", False)
    config = RunConfig.parse({"strategy": "perfedavg"})
    task = load_task(config.task_settings())
    assert choose_mode(run_plugins(config), Simulation(), task) == ("sequential", f"local rule 'maml' {NO_FORM}")
    line = rf"mode = 'batched' is not allowed: local rule 'maml' {NO_FORM} \(auto, sequential\)"
    with pytest.raises(ConfigError, match=line):
        choose_mode(run_plugins(config), Simulation("batched"), task)


@pytest.mark.parametrize(("mode", "threads"), [("fast", 0), ("auto", -1)])
def test_a_bad_way_to_simulate_is_one_line(mode: str, threads: int) -> None:
    with pytest.raises(ConfigError, match="is not allowed"):
        Simulation(mode, threads=threads)


def test_a_client_that_declines_ends_the_run_at_once_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client 0 declined: .*lower solo.learning-rate"):
        simulated(tmp_path / "run", "batched", **{"solo.learning-rate": 1e38})


def test_an_error_in_one_client_is_that_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that raises is counted with its reason and its place; the others finish the round, in batches too."""
    real = SGD.reply

    def failing(rule: SGD, job: TrainingJob) -> Any:
        if job.client_id == "client-0003":
            raise RuntimeError("out of memory")
        return real(rule, job)

    monkeypatch.setattr(SGD, "reply", failing)
    run = simulated(tmp_path / "run", "batched", rounds=1, mandatory_rounds=1, clients_per_round=0)
    (line,) = told(run)
    assert (line["joined"], line["failed"]) == (7, 1)
    (reason,) = line["failures"].values()
    assert re.fullmatch(r"RuntimeError: out of memory \(tests/simulation/test_engine.py:\d+\)", reason)
    assert list(line["failures"]) == ["client-0003"]


def test_there_is_a_checkpoint_now_and_then_and_after_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = Checkpoint.write

    def noted(checkpoint: Checkpoint, *where: Any) -> None:
        written.append(checkpoint.server_round)
        write(checkpoint, *where)

    monkeypatch.setattr(Checkpoint, "write", noted)
    for seconds, expected in ((1e9, [1, 2, 4]), (0.0, [1, 2, 3, 4])):
        monkeypatch.setattr("server.recorder.SECONDS_APART", seconds)
        monkeypatch.setattr("server.recorder.LARGEST_SHARE", 0)
        written.clear()
        run = simulated(tmp_path / str(seconds), "batched", rounds=4)
        assert written == expected
        model, _ = read_safetensors(run.path / MODEL)
        last = Layout.of(model).unpack(Checkpoint.read(run.path / CHECKPOINT).arrays)
        assert all(np.array_equal(last[name], values) for name, values in model.items())


def test_a_run_leaves_the_same_folder_as_a_deployed_one(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", "batched", rounds=2)
    assert {p.name for p in run.path.iterdir()} >= {"config.json", HISTORY, PARTICIPATION, MODEL, CHECKPOINT}
    recorded = json.loads((run.path / "config.json").read_text())
    assert recorded["settings"]["round-timeout"] == 60.0
    assert recorded["versions"]["torch"] == torch.__version__.partition("+")[0]
    MemoryGrid()  # the process's identity is the tests' again


def test_a_run_records_how_its_clients_train(tmp_path: Path) -> None:
    config = RunConfig.parse(SETTINGS | {"rounds": 1, "mandatory-rounds": 1})
    run = RunPlan.of(config, tmp_path / "run").folder({})
    simulate(config, run, Simulation("vmap", why="1.7 times as fast as one after another"))
    recorded = Record(run.path).config["runtime"]
    assert (recorded["mode"], recorded["why"]) == ("vmap", "1.7 times as fast as one after another")


@pytest.mark.parametrize("mode", ["layers", "vmap", "sequential"])
def test_a_runs_data_and_models_go_with_it_before_the_garbage_collector_comes(mode: str, tmp_path: Path) -> None:
    def held() -> dict[int, str]:
        kinds = (Participants, Pool, TaskLearner, TaskLearners, VmapForm)
        return {id(held): type(held).__name__ for held in gc.get_objects() if isinstance(held, kinds)}

    simulated(tmp_path / "first", mode, rounds=2)  # imports what it needs, the app of a deployed client among it
    gc.collect()
    before = held()
    gc.disable()
    try:
        simulated(tmp_path / "run", mode, rounds=2)
        assert {place: kind for place, kind in held().items() if place not in before} == {}
    finally:
        gc.enable()
