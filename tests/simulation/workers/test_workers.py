"""Runs whose clients are shared out give what one process gives, through losses of workers and resumption too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from server.checkpoints import settings_to_resume
from tests.simulation.test_resume import SETTINGS, STRATEGIES
from tests.simulation.workers.local import Workers, workers

__all__ = ["workers"]

ALONE, THREE = Simulation(threads=1), Simulation(threads=1, workers=3)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def settings(**changed: Any) -> RunConfig:
    changed = {"rounds": 4} | changed
    return RunConfig.parse(SETTINGS | {key.replace("_", "-"): value for key, value in changed.items()})


def run(path: Path, config: RunConfig, how: Simulation) -> Path:
    simulate(config, RunPlan.of(config, path).folder({}), how)
    return path


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunConfig], Path]:
    """What one process gives for a run's settings: read it alone, as tests share it."""
    runs: dict[str, Path] = {}

    def run_of(config: RunConfig) -> Path:
        settings = config.model_dump_json()
        if settings not in runs:
            runs[settings] = run(tmp_path_factory.mktemp("one"), config, ALONE)
        return runs[settings]

    return run_of


def numbers(path: Path) -> tuple[list[Any], list[dict[str, Any]]]:
    """What a run found out: who did what, exactly, and all its numbers."""
    decided = Record(path).decisions
    history = [{k: v for k, v in line.items() if k != "seconds"} for line in Record(path).history]
    return decided, history + Record(path).measurements


def nearly(value: Any) -> Any:
    """The same value, to float tolerance where it is a number or a list of numbers."""
    if isinstance(value, float) or (isinstance(value, list) and all(isinstance(each, float) for each in value)):
        return pytest.approx(value, rel=2e-4, abs=1e-6, nan_ok=True)
    return value


def assert_same(one: Path, other: Path) -> None:
    (decided, found), (decided_too, found_too) = numbers(one), numbers(other)
    assert decided_too == decided
    assert len(found) == len(found_too)
    for line, line_too in zip(found, found_too, strict=True):
        assert line.keys() == line_too.keys()
        for key, value in line.items():
            assert line_too[key] == nearly(value), (line, key)
    model, model_too = read_safetensors(one / MODEL)[0], read_safetensors(other / MODEL)[0]
    for name, values in model.items():
        np.testing.assert_allclose(model_too[name], values, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_the_result_is_that_of_one_process(
    strategy: str, tmp_path: Path, workers: Workers, one_process: Callable[[RunConfig], Path]
) -> None:
    config = settings(strategy=strategy, **STRATEGIES[strategy])
    assert_same(one_process(config), run(tmp_path / "three", config, THREE))


@pytest.mark.parametrize("strategy", ["maxfl", "scaffold"])
def test_bounds_hold_where_models_are_folded(strategy: str, tmp_path: Path, workers: Workers) -> None:
    attack = {"byzantine_share": 0.34, "byzantine_attack": "flip", "influence": "bounded"}
    config = settings(strategy=strategy, clients_per_round=0, **attack)
    assert_same(run(tmp_path / "one", config, ALONE), run(tmp_path / "three", config, THREE))
    assert sum(line["bounded"] for line in Record(tmp_path / "three").history) > 0


def test_an_aggregation_that_needs_single_models_gets_them(tmp_path: Path, workers: Workers) -> None:
    config = settings(strategy="fedavg", clients_per_round=0, aggregation="median", participation="always")
    one = run(tmp_path / "one", config, ALONE)
    assert_same(one, run(tmp_path / "three", config, THREE))
    mean = run(tmp_path / "mean", config.model_copy(update={"aggregation": "mean"}), ALONE)
    with pytest.raises(AssertionError):
        assert_same(one, mean)
    assert all("fold" not in worker.calls for worker in workers.made)


def test_values_that_are_not_finite_are_left_out_where_models_are_folded(tmp_path: Path, workers: Workers) -> None:
    config = settings(strategy="maxfl", learning_rate=1e38, requirement="fixed")
    assert_same(run(tmp_path / "one", config, ALONE), run(tmp_path / "three", config, THREE))
    assert Record(tmp_path / "three").history[0]["failed"] > 0


def test_only_sums_leave_a_worker(tmp_path: Path, workers: Workers) -> None:
    """Of 12 models, each of two workers sends one sum a round."""
    config = settings(strategy="fedavg", clients=12, clients_per_round=0, unseen_clients=0, participation="always")
    config = config.model_copy(update={"model": "mlp", "rounds": 2, "requirement": "fixed"})
    how = Simulation(threads=1, workers=2)
    run(tmp_path / "sums", config, how)
    model = sum(values.nbytes for values in read_safetensors(tmp_path / "sums" / MODEL)[0].values())
    assert all(worker.calls.count("fold") == config.rounds for worker in workers.made)
    assert all(model < worker.bytes["fold"][0] < model + 4000 for worker in workers.made)
    trained = [worker.bytes["answer"][1] for worker in workers.made]  # the roll call comes before
    workers.keeps = False
    run(tmp_path / "models", config, how)
    assert_same(tmp_path / "models", tmp_path / "sums")
    sent = [worker.bytes["answer"][1] for worker in workers.made]
    assert all(5.9 * model < more - less < 6.1 * model for more, less in zip(sent, trained, strict=True))


@pytest.mark.parametrize(
    ("strategy", "method", "when"),
    [
        ("scaffold", "answer", "before"),
        ("fedavg", "answer", "after"),
        ("qfedavg", "answer", "after"),
        ("scaffold", "fold", "before"),
        ("maxfl", "fold", "after"),
    ],
)
def test_a_lost_workers_clients_go_to_the_others(
    strategy: str,
    method: str,
    when: str,
    tmp_path: Path,
    workers: Workers,
    one_process: Callable[[RunConfig], Path],
) -> None:
    config = settings(strategy=strategy, **STRATEGIES[strategy])
    one = one_process(config)
    workers.dies = lambda worker, called, count: when * (worker == 1 and called == method and count == 3)
    three = run(tmp_path / "three", config, THREE)
    assert_same(one, three)
    lost = [event["worker"] for event in Record(three).events if event["event"] == "worker-lost"]
    assert lost == [1]


def test_workers_are_lost_one_after_another_even_while_clients_are_placed(
    tmp_path: Path, workers: Workers, one_process: Callable[[RunConfig], Path]
) -> None:
    config = settings(strategy="scaffold")
    one = one_process(config)

    def dies(worker: int, method: str, count: int) -> str:
        gone = {(2, "fold", 2), (0, "place", 2)}
        return "after" if (worker, method, count) in gone else ""

    workers.dies = dies
    assert_same(one, run(tmp_path / "three", config, THREE))
    lost = [event["worker"] for event in Record(tmp_path / "three").events if event["event"] == "worker-lost"]
    assert lost == [2, 0]


def test_a_run_without_workers_left_can_be_continued(
    tmp_path: Path, workers: Workers, one_process: Callable[[RunConfig], Path]
) -> None:
    config = settings(strategy="scaffold")
    one = one_process(config)
    workers.dies = lambda worker, method, count: "before" * (method == "answer" and count == 7)
    with pytest.raises(RuntimeError, match="all workers are lost"):
        run(tmp_path / "three", config, THREE)
    workers.dies = lambda worker, method, count: ""
    path = tmp_path / "three"
    done = len(Record(path).history)
    assert 0 < done < config.rounds
    how = Simulation.of_runtime(Record(path).config["runtime"])
    assert how.workers == 3
    simulate(settings_to_resume(path, None), RunFolder.open(path), how)
    assert_same(one, path)


@pytest.mark.parametrize("strategy", ["maxfl", "scaffold"])
def test_a_run_may_be_continued_with_workers_and_without(
    strategy: str, tmp_path: Path, workers: Workers, one_process: Callable[[RunConfig], Path]
) -> None:
    one = one_process(settings(strategy=strategy, rounds=6))
    for first, then in ((ALONE, THREE), (THREE, ALONE)):
        path = tmp_path / f"{first.workers}-{then.workers}"
        run(path, settings(strategy=strategy, rounds=3, schedule_rounds=6), first)
        simulate(settings_to_resume(path, 6), RunFolder.open(path), then)
        assert_same(one, path)
