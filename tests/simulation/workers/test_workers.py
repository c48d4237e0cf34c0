"""Runs whose clients are shared out give what one process gives, continued after the loss of a worker too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.in_process_grid import FIRST_NODE, RUN
from fedappeal.simulation.options import SEQUENTIAL, Simulation
from fedappeal.simulation.workers.cluster import WorkerLost
from fedappeal.simulation.workers.workers_grid import WorkersGrid
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


ONE_BY_ONE = {
    "dropout": {"model": "tests.engines.models:Skipping"},
    "personal layers": {"share": "!*bias", "strategy": "fedavg"},
    "adaptation": {"judge-on": "cross-fitted", "participation": "appeal=0.5,always=0.5", "clients-per-round": 0},
    "use = best": STRATEGIES["maxfl"],
    "a record besides the model": {"strategy": "scaffold"},
    "single models": {"strategy": "mifa", "participation": "always+bernoulli"},
    "a median": {"strategy": "fedavg", "aggregation": "median", "clients-per-round": 0},
    "bounds": {"byzantine-share": 0.34, "byzantine-attack": "flip", "influence": "bounded", "clients-per-round": 0},
    "not finite": {"learning-rate": 1e38, "requirement": "fixed"},
}


@pytest.mark.parametrize("changed", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_one_by_one_the_result_is_that_of_one_process_to_the_bit(
    changed: dict[str, Any], tmp_path: Path, workers: Workers
) -> None:
    config = settings(**changed)
    one, three = (
        run(tmp_path / str(number), config, Simulation(SEQUENTIAL, threads=1, workers=number)) for number in (0, 3)
    )
    assert str(numbers(three)) == str(numbers(one))  # as text: a number that is none equals itself
    model, model_too = read_safetensors(one / MODEL)[0], read_safetensors(three / MODEL)[0]
    assert {name: values.tobytes() for name, values in model_too.items()} == {
        name: values.tobytes() for name, values in model.items()
    }
    assert len(workers.latest) == 3


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_side_by_side_the_result_is_that_of_one_process(
    strategy: str, tmp_path: Path, workers: Workers, one_process: Callable[[RunConfig], Path]
) -> None:
    config = settings(strategy=strategy, **STRATEGIES[strategy])
    assert_same(one_process(config), run(tmp_path / "three", config, THREE))


def test_nobody_trains_before_it_is_known_who_does(tmp_path: Path, workers: Workers) -> None:
    """Clients that sit out are replaced first: all joiners of a round train at once, in one call of each worker."""
    config = settings(participation="always+bernoulli", evaluate_every=0, clients=12, unseen_clients=0, rounds=8)
    run(tmp_path / "three", config, THREE)
    assert sum(line["sat_out"] for line in Record(tmp_path / "three").history) > 3
    trained = [[call for call in local.calls if call[0] == "answer" and call[5]] for local in workers.latest]
    asked = [[call for call in local.calls if call[0] == "answer" and not call[5]] for local in workers.latest]
    # A round's training, the roll call's warm-up, and the evaluation at the end.
    assert all(len(calls) <= config.rounds + 3 for calls in trained)
    assert sum(map(len, asked)) > sum(map(len, trained))


def test_a_model_is_sent_to_a_worker_once(tmp_path: Path, workers: Workers) -> None:
    """Clients train from the model that they have evaluated, and from w_0, which the roll call brought."""
    run(tmp_path / "three", settings(strategy="scaffold", evaluate_every=1), THREE)
    for local in workers.latest:
        answers = [call for call in local.calls if call[0] == "answer"]
        brought = [(message, known) for _, _, messages, known, *_ in answers if known for message in messages]
        assert {message.metadata.message_type for message, _ in brought} == {"train"}
        assert all(not message.content["arrays"] for message, _ in brought)
        # What SCAFFOLD sends besides the model is new.
        assert all({name for _, name, _ in known} == {"arrays"} for _, known in brought)


def test_a_model_that_a_strategy_changes_in_place_is_sent_again() -> None:
    model = ArrayRecord({name: Array(np.arange(3.0)) for name in "ab"})
    grid = WorkersGrid([Mock()], 1, lambda client: Context(RUN, FIRST_NODE, {}, RecordDict(), {}))

    def knows_it() -> bool:
        grid.take(Message(RecordDict({"arrays": model}), FIRST_NODE, "evaluate"))
        _, (message,), known = grid._news(0)
        assert known == ([] if message.content["arrays"] is model else [(0, "arrays", 0)])
        return bool(known)

    assert [knows_it(), knows_it()] == [False, True]
    model["b"] = Array(np.arange(3.0) + 1)
    assert [knows_it(), knows_it()] == [False, True]
    model["a"].data = model["b"].data
    assert [knows_it(), knows_it()] == [False, True]
    model["c"] = model["a"]
    assert [knows_it(), knows_it()] == [False, True]


@pytest.mark.parametrize("strategy", ["maxfl", "scaffold"])
def test_a_run_that_lost_a_worker_can_be_continued(
    strategy: str, tmp_path: Path, workers: Workers, one_process: Callable[[RunConfig], Path]
) -> None:
    config = settings(strategy=strategy, **STRATEGIES[strategy])
    one, path = one_process(config), tmp_path / "three"
    workers.most = 8
    with pytest.raises(WorkerLost, match="killed"):
        run(path, config, THREE)
    assert [event["reason"] for event in Record(path).events if event["event"] == "worker-lost"] == [
        "a worker is lost: killed"
    ]
    assert 0 < len(Record(path).history) < config.rounds
    workers.most = 0
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
