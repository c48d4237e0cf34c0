"""Simulations in threads of one process: each gives what it gives alone, and none leaves a setting behind."""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from fedappeal.core.registry import LOCAL_RULES
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation import process_wide
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.process_wide import check_threads, freeze_more, frozen_objects, simulation_threads
from tests.run_models import learned

T = TypeVar("T")


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what the tests' own start has frozen."""
    monkeypatch.setattr(process_wide, "_frozen_elsewhere", [])
    gc.unfreeze()
    yield
    gc.freeze()


SHARED: dict[str, Any] = {
    **{"model": "mlp", "clients": 6, "rounds": 2, "mandatory-rounds": 1},
    **{"local-steps": 2, "batch-size": 16, "solo.steps": 2},
}
PAIRS: dict[str, tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "batched, batched": (
        ("batched", {"strategy": "maxfl", "seed": 1}),
        ("batched", {"strategy": "scaffold", "seed": 2}),
    ),
    "sequential, sequential": (
        ("sequential", {"strategy": "fedalign", "seed": 3, "loss-mode": "training"}),
        ("sequential", {"strategy": "pfedme", "seed": 4}),
    ),
    "batched, sequential": (
        ("batched", {"strategy": "fedprox", "seed": 5, "momentum": 0.5}),
        ("sequential", {"strategy": "perfedavg", "seed": 6}),
    ),
    "equal runs": (
        ("batched", {"strategy": "fedavg", "seed": 7, "clipping-norm": 1.0}),
        ("batched", {"strategy": "fedavg", "seed": 7, "clipping-norm": 1.0}),
    ),
}
"""Modes and settings of two runs; the model has dropout, whose generator is one for the process."""

Outcome = tuple[list[dict[str, Any]], list[dict[str, Any]], bytes]


def outcome(
    folder: Path, mode: str, settings: dict[str, Any], threads: int, on_round: Callable[[Any], None]
) -> Outcome:
    """Return the history without what depends on the clock, the decisions, and the final model."""
    config = RunConfig.parse(SHARED | settings)
    run = RunPlan.of(config, folder).folder({})
    simulate(config, run, Simulation(mode, threads=threads), on_round)
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in Record(folder).history]
    return lines, Record(folder).decisions, learned(folder)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pair", PAIRS)
def test_two_simulations_at_once_give_what_each_gives_alone(pair: str, threads: int, tmp_path: Path) -> None:
    runs = PAIRS[pair]
    alone = [
        outcome(tmp_path / f"alone-{n}", *run, threads, on_round=lambda record: None) for n, run in enumerate(runs)
    ]
    barrier = threading.Barrier(2, timeout=120)

    def at_once(n: int) -> Outcome:
        try:
            return outcome(tmp_path / f"at-once-{n}", *runs[n], threads, on_round=lambda record: _wait(barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(at_once, range(2))) == alone
    assert sum(line["joined"] for lines, _, _ in alone for line in lines) > 0


def _wait(barrier: threading.Barrier) -> None:
    """Keep both runs in the same round, so that they do overlap."""
    barrier.wait()


def of_a_new_thread(ask: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def settings_of_the_process() -> tuple[object, ...]:
    threads = torch.get_num_threads(), of_a_new_thread(torch.get_num_threads)
    return *threads, gc.get_freeze_count(), gc.isenabled(), gc.get_threshold(), torch.is_grad_enabled()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_no_setting_behind(mode: str, fails: bool, tmp_path: Path, one_thread: None) -> None:
    before, seen = settings_of_the_process(), []

    def on_round(record: object) -> None:
        seen.append((torch.get_num_threads(), of_a_new_thread(torch.get_num_threads), gc.get_freeze_count() > 0))
        if fails:
            raise RuntimeError("no space left")

    if fails:
        with pytest.raises(RuntimeError, match="no space left"):
            outcome(tmp_path / "run", mode, {"rounds": 2}, 3, on_round)
    else:
        outcome(tmp_path / "run", mode, {"rounds": 2}, 3, on_round)
    assert settings_of_the_process() == before
    assert seen == [(3, 1, True)] * (1 if fails else 2)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("one-thread")]


def test_a_setting_that_is_refused_leaves_none_behind_either(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOCAL_RULES.load("maml"), "batched", False)
    before = settings_of_the_process()
    with pytest.raises(ConfigError, match="mode = 'batched' is not allowed"):
        outcome(tmp_path / "run", "batched", {"strategy": "perfedavg"}, 3, lambda record: None)
    assert settings_of_the_process() == before


def test_objects_that_the_caller_has_frozen_stay_frozen(tmp_path: Path) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        outcome(tmp_path / "run", "batched", {"rounds": 1}, 0, lambda record: None)
        assert 0.9 * frozen < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


def test_once_a_caller_has_frozen_objects_none_are_frozen_beside_them() -> None:
    gc.freeze()
    with frozen_objects():
        pass
    gc.unfreeze()
    with frozen_objects():
        assert gc.get_freeze_count() == 0


def test_what_the_longest_of_several_runs_has_frozen_stays_so_until_it_ends(tmp_path: Path) -> None:
    seen: list[bool] = []

    def others(record: object) -> None:
        of_a_new_thread(lambda: outcome(tmp_path / "other", "batched", {"rounds": 1}, 0, lambda record: None))
        seen.append(gc.get_freeze_count() > 0)

    outcome(tmp_path / "run", "batched", {"rounds": 1}, 0, others)
    assert seen == [True]
    assert gc.get_freeze_count() == 0


def test_another_number_of_threads_while_a_simulation_runs_is_refused_in_one_line(
    tmp_path: Path, one_thread: None
) -> None:
    said: list[str] = []

    def others(record: object) -> None:
        for n, threads in enumerate((3, 0)):
            with pytest.raises(ConfigError) as refused:
                of_a_new_thread(lambda t=threads, n=n: outcome(tmp_path / str(n), "auto", {}, t, print))  # type: ignore[misc]
            said.append(str(refused.value))
        of_a_new_thread(lambda: outcome(tmp_path / "equal", "auto", {"rounds": 1}, 2, lambda record: None))

    outcome(tmp_path / "run", "sequential", {"rounds": 1}, 2, others)
    assert said == [
        "threads = 3 is not allowed: 2, as another simulation of this process has it",
        "threads = 0 (1 here) is not allowed: 2, as another simulation of this process has it",
    ]
    assert settings_of_the_process()[:2] == (1, 1)
    outcome(tmp_path / "later", "sequential", {"rounds": 1}, 3, lambda record: None)


def test_a_number_that_pytorch_refuses_leaves_nothing_behind(one_thread: None) -> None:
    with pytest.raises(RuntimeError), simulation_threads(2.5):  # type: ignore[arg-type]
        pass
    with simulation_threads(2):
        with pytest.raises(ConfigError, match="threads = 3 is not allowed: 2"):
            check_threads(3)
        check_threads(2)
    check_threads(3)


def test_what_comes_later_is_frozen_with_what_was_there_and_put_back() -> None:
    freeze_more()
    assert gc.get_freeze_count() == 0  # nothing is frozen: there is nothing to add to
    with frozen_objects():
        before = gc.get_freeze_count()
        made = [[k] for k in range(1000)]
        freeze_more()
        assert gc.get_freeze_count() >= before + len(made)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("found", "used"), [((700, 10, 10), 50_000), ((80_000, 5, 5), 80_000), ((0, 10, 10), 0)])
def test_the_collector_looks_rarely_and_is_put_back_after_the_last(found: tuple[int, int, int], used: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(*found)
        with frozen_objects():
            with frozen_objects():
                assert gc.get_threshold() == (used, *found[1:])
            assert gc.get_threshold() == (used, *found[1:])
        assert gc.get_threshold() == found
    finally:
        gc.set_threshold(*before)


def blas_threads() -> set[int]:
    """Return the numbers of threads that the BLAS libraries of this process have."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_blas_has_the_simulations_threads_until_the_last_one_ends() -> None:
    with threadpool_limits(2, user_api="blas"):
        first, second = simulation_threads(1), simulation_threads(1)
        first.__enter__()
        assert blas_threads() == {1}
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {2}


def test_blas_keeps_its_threads_where_no_number_is_wanted() -> None:
    with threadpool_limits(2, user_api="blas"), simulation_threads(0):
        assert blas_threads() == {2}
