"""Clients that train beside each other in threads: what each trains alone, noise included."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client.learner import Job
from client.training.models import arrays_of
from client.training.requests import Arithmetic, TrainRequest
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalProblem
from fedappeal.protocol.packing import Arrays
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.forms.scheduler import ThreadedScheduler, may_share
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.process_wide import single_threaded_workers
from fedappeal.tasks import load_task

CLIENTS = 5
TASK = load_task(
    RunConfig(judge_on="train", adaptation_steps=0, goodwill=-1, clients=CLIENTS, model="mlp").task_settings()
)


def requests(module: nn.Module) -> list[TrainRequest]:
    training = LocalTrainingSettings(learning_rate=0.1, batch_size=4, local_steps=3)
    return [
        TrainRequest(
            **{"task": TASK, "model": module, "place": k, "data": TASK.load(k).train, "arrays": arrays_of(module)},
            **{"job": Job(SGD(), training, "batches", 2), "seed": 3, "client_id": f"client-{k}"},
            **{"batches": np.arange(12 * (1 + k % 2)).reshape(-1, 4) % 10},
        )
        for k in range(CLIENTS)
    ]


def without_dropout() -> nn.Module:
    module = TASK.initial_model(1)
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return module


def side_by_side(all_of_them: list[TrainRequest], scheduler: ThreadedScheduler) -> list[Arrays]:
    names = [str(request.place) for request in all_of_them]
    for name, request in zip(names, all_of_them, strict=True):
        scheduler.start(name, partial(scheduler.train, request))
    found: dict[str, Arrays] = {}
    while left := [name for name in names if name not in found]:
        found |= scheduler.results(left)
    return [found[name] for name in names]


@pytest.mark.parametrize("make", [without_dropout, lambda: TASK.initial_model(1)], ids=["no noise", "dropout"])
def test_each_client_trains_what_it_trains_alone_round_after_round(make: Callable[[], nn.Module]) -> None:
    before = torch.get_rng_state()
    expected = [Arithmetic().train(request) for request in requests(make())]
    with single_threaded_workers(3) as workers:
        assert workers is not None
        scheduler = ThreadedScheduler(workers, 3)
        for _ in range(2):
            for found, alone in zip(side_by_side(requests(make()), scheduler), expected, strict=True):
                assert found.keys() == alone.keys()
                for name in alone:
                    np.testing.assert_allclose(found[name], alone[name], rtol=1e-5, atol=1e-6)
    assert torch.equal(before, torch.get_rng_state())


class _Meeting(SGD):
    """Trains only where another client trains at the same time."""

    here = threading.Barrier(2)

    def train(self, model: nn.Module, problem: LocalProblem) -> None:
        self.here.wait(timeout=30)
        super().train(model, problem)


def test_clients_train_at_the_same_time_on_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Meeting, "__module__", "client.training.meeting")
    pair = [
        replace(request, job=replace(request.job, rule=_Meeting())) for request in requests(without_dropout())[:2]
    ]
    with single_threaded_workers(2) as workers:
        assert workers is not None
        found = side_by_side(pair, ThreadedScheduler(workers, 2))
    alone = Arithmetic().train(replace(pair[0], job=replace(pair[0].job, rule=SGD())))
    np.testing.assert_allclose(found[0]["output.bias"], alone["output.bias"], rtol=1e-5)


class Halved(SGD):
    """Half of what SGD moves."""

    name = "halved"
    batched = False

    def train(self, model: nn.Module, problem: LocalProblem) -> None:
        before = [p.detach().clone() for p in model.parameters()]
        super().train(model, problem)
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.sub_((p - old) / 2)


class _Failing(SGD):
    def train(self, model: nn.Module, problem: LocalProblem) -> None:
        raise ValueError("no examples")


def test_an_error_is_its_own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Failing, "__module__", "client.training.failing")
    first, second, *_ = requests(without_dropout())
    with single_threaded_workers(2) as workers:
        assert workers is not None
        scheduler = ThreadedScheduler(workers, 2)
        caught: list[str] = []

        def fails() -> str:
            try:
                scheduler.train(replace(first, job=replace(first.job, rule=_Failing())))
            except ValueError as error:
                caught.append(str(error))
            return "told"

        scheduler.start("a", fails)
        scheduler.start("b", partial(scheduler.train, second))
        found = scheduler.results(["a", "b"])
        while len(found) < 2:
            found |= scheduler.results([name for name in "ab" if name not in found])
    assert caught == ["no examples"]
    assert found["b"].keys() == second.arrays.keys()


def test_a_run_one_by_one_on_two_threads_is_the_run_on_one(tmp_path: Path) -> None:
    config = RunConfig.parse_recorded(
        {
            **{"task": "digits", "model": "logistic", "clients": 6, "clients-per-round": 4, "rounds": 2},
            **{"local-steps": 2, "batch-size": 4, "requirement": "fixed"},
        }
    )
    runs = []
    for threads in (1, 2):
        folder = RunPlan.of(config, tmp_path / str(threads)).folder({})
        simulate(config, folder, Simulation("sequential", threads=threads))
        runs.append([(line["loss"], line["accuracy"]) for line in Record(folder.path).history])
    assert len(runs[0]) == 2
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5)


def test_a_run_with_a_rule_of_a_users_own_trains_on_two_threads_as_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule has no batched form and is not known to allow others beside it."""
    config = RunConfig.parse_recorded(
        {
            **{"task": "digits", "model": "logistic", "clients": 4, "rounds": 2, "batch-size": 4, "local-steps": 2},
            **{"requirement": "fixed", "local-rule": "tests.simulation.forms.test_threaded:Halved"},
        }
    )
    runs, ran_in = [], []
    real = Halved.train

    def noted(rule: Halved, model: nn.Module, problem: LocalProblem) -> None:
        ran_in.append(threading.current_thread().name)
        real(rule, model, problem)

    monkeypatch.setattr(Halved, "train", noted)
    for threads in (1, 2):
        folder = RunPlan.of(config, tmp_path / str(threads)).folder({})
        simulate(config, folder, Simulation("auto", threads=threads))
        runs.append([(line["loss"], line["joined"]) for line in Record(folder.path).history])
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5)
    assert runs[0][-1][1] == 4
    assert set(ran_in) == {threading.main_thread().name}
    assert len(ran_in) == 2 * 2 * 4


def test_code_of_a_users_own_runs_in_one_thread() -> None:
    request = requests(without_dropout())[0]
    assert may_share(request)
    assert not may_share(replace(request, job=replace(request.job, rule=_Failing())))
