"""The evaluation of one model for all clients: the same numbers as one client's own, on any number of threads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client.training.devices import Launched, on_host
from client.training.models import BFLOAT16, FLOAT32, arrays_of, evaluate
from client.training.noise import Noise
from client.training.requests import Arithmetic, EvaluateRequest
from fedappeal.core.requirement import Evaluation
from fedappeal.settings.config import RunConfig
from fedappeal.simulation import evaluation
from fedappeal.simulation.evaluation import ClientsEvaluation, evaluates_own, own_evaluations
from fedappeal.simulation.forms.batched import Examples
from fedappeal.simulation.forms.layered import cross_entropy_gradient, example_losses
from fedappeal.simulation.process_wide import single_threaded_workers
from fedappeal.tasks import load_task
from fedappeal.tasks.task import Split, Task

CLIENTS = 6
TASK = load_task(RunConfig(clients=CLIENTS, model="mlp").task_settings())
SPLITS = [TASK.load(k).test for k in range(CLIENTS)]


def examples(splits: Sequence[Split] = SPLITS) -> Examples:
    start = [sum(len(s) for s in splits[:k]) for k in range(len(splits) + 1)]
    return Examples(torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits]), start)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(evaluation, "CHUNK", 7)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def expected(model: nn.Module, clients: Sequence[int], task: Task = TASK) -> dict[int, tuple[float, float]]:
    found = {k: evaluate(task, model, SPLITS[k]) for k in clients}
    return {k: (e.loss, e.score) for k, e in found.items()}


def asked(model: nn.Module, task: Task = TASK, precision: str = FLOAT32) -> EvaluateRequest:
    return EvaluateRequest(task, model, 0, SPLITS[0], arrays_of(model), "train", "shared", precision=precision)


def answers(launched: Launched) -> Sequence[Evaluation]:
    return launched.read(on_host(launched.tensors))


def measured(model: nn.Module, clients: Sequence[int], task: Task = TASK) -> dict[int, tuple[float, float]]:
    with single_threaded_workers(torch.get_num_threads()) as workers:
        evaluations = answers(ClientsEvaluation(workers).of(asked(model, task), examples(), clients))
    return {k: (e.loss, e.score) for k, e in zip(clients, evaluations, strict=True)}


@pytest.mark.parametrize("clients", [range(CLIENTS), [2, 3], [0, 4, 5], [1]])
@pytest.mark.parametrize("short", [1, 1000])
def test_each_client_gets_what_it_would_measure_alone(
    clients: Sequence[int], short: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "SHORT", short)
    model = TASK.initial_model(3)
    several, alone = measured(model, clients), expected(model, clients)
    assert several.keys() == alone.keys()
    for k in clients:
        assert several[k] == pytest.approx(alone[k], rel=1e-5)
    torch.set_num_threads(1)
    assert measured(model, clients) == several, "bit for bit, whatever the number of threads"
    assert torch.get_num_threads() == 1


class Spy(nn.Module):
    """Notes on how many threads, and whether with gradients, it runs."""

    seen: ClassVar[list[tuple[int, bool]]] = []

    def forward(self, x: Tensor) -> Tensor:
        x.relu().sum()  # PyTorch settles a thread's number at its first parallel operation
        self.seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        return x


def test_each_pass_runs_on_one_thread_without_gradients(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spy, "__module__", "torch.nn.modules.spy")
    Spy.seen.clear()
    measured(nn.Sequential(Spy(), TASK.initial_model(3)), range(CLIENTS))
    assert len(Spy.seen) == -(-sum(map(len, SPLITS)) // 7)
    assert set(Spy.seen) == {(1, False)}
    assert torch.get_num_threads() == threads


def test_a_module_that_is_not_pytorchs_own_runs_in_one_thread(threads: int) -> None:
    Spy.seen.clear()
    measured(nn.Sequential(Spy(), TASK.initial_model(3)), range(CLIENTS))
    assert {number for number, _ in Spy.seen} == {threads}


class OwnLoss(Task):
    """Its loss must not run twice at once."""

    input_shape, num_classes = TASK.input_shape, TASK.num_classes
    running = 0

    def initial_model(self, seed: int) -> nn.Module:
        return TASK.initial_model(seed)

    def load(self, client: int):  # type: ignore[no-untyped-def]
        return TASK.load(client)

    def loss(self, logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        self.running += 1
        assert self.running == 1
        found = 2 * super().loss(logits, y, reduction)
        self.running -= 1
        return found


def test_a_tasks_own_loss_is_used_one_client_at_a_time(threads: int) -> None:
    model, task = TASK.initial_model(3), OwnLoss(TASK.settings)
    for k, (loss, accuracy) in expected(model, range(CLIENTS)).items():
        assert measured(model, range(CLIENTS), task)[k] == pytest.approx((2 * loss, accuracy), rel=1e-5)


def test_each_model_is_measured_by_its_own_values_though_what_calculates_it_is_made_once() -> None:
    scratch, of = TASK.initial_model(0), ClientsEvaluation()
    for seed in (3, 4):
        model = TASK.initial_model(seed)
        found = answers(of.of(replace(asked(model), model=scratch), examples(), range(CLIENTS)))
        for k, each in expected(model, range(CLIENTS)).items():
            assert (found[k].loss, found[k].score) == pytest.approx(each, rel=1e-5)


def test_own_models_are_measured_as_each_client_would_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))

    def own(k: int) -> EvaluateRequest:
        torch.manual_seed(k)
        arrays = {n: np.array(a + torch.rand(a.shape).numpy(), a.dtype) for n, a in arrays_of(module).items()}
        for array in arrays.values():
            array.flags.writeable = False
        return EvaluateRequest(TASK, module, k, SPLITS[k], arrays, "test", "")

    requests = [own(k) for k in (4, 0, 2)]
    alone = [Arithmetic().evaluate(request) for request in requests]
    held = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for found, expected in zip(answers(own_evaluations(requests)), alone, strict=True):
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.score == expected.score
    assert all(torch.equal(held[name], tensor) for name, tensor in module.state_dict().items()), "nothing is loaded"


@pytest.mark.parametrize(
    "alone",
    [
        {"precision": BFLOAT16},
        {"noise": Noise(1, "client", 1)},
        {"model": nn.Sequential(nn.Flatten(), Spy())},
        {
            "data": Split(
                torch.rand(evaluation.CHUNK + 1, 1, 8, 8), torch.zeros(evaluation.CHUNK + 1, dtype=torch.int64)
            )
        },
    ],
)
def test_what_own_evaluations_cannot_do_is_left_to_each_client(alone: dict[str, Any]) -> None:
    request = asked(TASK.initial_model(3))
    assert evaluates_own(request)
    assert not evaluates_own(replace(request, **alone))


@pytest.mark.parametrize("classes", [2, 10, 15, 16, 40])
def test_losses_and_their_gradients_are_the_formulas_for_few_classes_and_for_many(classes: int) -> None:
    logits, y = 4 * torch.randn(300, classes), torch.randint(0, classes, (300,))
    exact = logits.double()
    by_formula = exact.exp().sum(1).log() - exact[range(300), y]
    slope = exact.exp() / exact.exp().sum(1, keepdim=True) - nn.functional.one_hot(y, classes)
    assert torch.allclose(example_losses(TASK, logits, y).double(), by_formula, rtol=1e-6, atol=1e-5)
    gradient = cross_entropy_gradient(logits, y)
    assert gradient.is_contiguous()
    assert torch.allclose(gradient.double(), slope, atol=1e-6)
