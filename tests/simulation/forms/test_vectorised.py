"""Clients side by side by vmap: what they do one after another, for models and tasks of every kind."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from client.learner import Job
from client.training.models import arrays_of
from client.training.requests import Arithmetic, GradientRequest, TrainRequest
from client.training.sgd import SGD, AdamW
from fedappeal.core.local_rule import LocalRule
from fedappeal.protocol.packing import Arrays
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig, TaskSettings
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.forms.batched import Cohort, Examples, Target, line_up, train
from fedappeal.simulation.forms.scheduler import BatchScheduler
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.pool import Pool
from fedappeal.system.files import read_safetensors
from fedappeal.tasks.examples import Split
from strategies.fedprox import FedProx
from strategies.perfedavg import PerFedAvg
from strategies.pfedme import PFedMe
from strategies.scaffold import Scaffold
from tests.problems import Classification
from tests.simulation.structures import EXAMPLES, TASKS, Classes, FrozenBelow, Structured, Tokens

CPU = torch.device("cpu")
CLIENTS = len(EXAMPLES)
STEPS = (3, 4, 1, 4, 3, 2)
"""Local steps of each client."""


class Watched(VmapForm):
    """Notes how many clients each step had."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.active: list[int] = []

    def loss(self, clients: Cohort, *given: Any, **named: Any) -> Tensor:
        self.active.append(len(next(iter(clients.trained.values()))))
        return super().loss(clients, *given, **named)


class Setting:
    """A task, its model, and what its clients train from."""

    def __init__(self, kind: type[Structured]) -> None:
        self.task = kind(TaskSettings(clients=CLIENTS))
        self.module = self.task.initial_model(0)
        self.pool = Pool(self.task, range(CLIENTS), CPU)
        self.form = Watched(self.task, self.module)
        self.scheduler = BatchScheduler(self.pool, self.form)

    def requests(self, rules: Sequence[LocalRule], **settings: float) -> list[TrainRequest]:
        """Return each client's local training."""
        training = LocalTrainingSettings(learning_rate=0.3, batch_size=6, local_steps=4, **settings)  # type: ignore[arg-type]
        draws = np.random.default_rng(0)
        return [
            TrainRequest(
                task=self.task,
                model=self.module,
                place=k,
                data=self.pool.client(k).train,
                arrays=arrays_of(self.module),
                job=Job(rule, training, "batches", 1),
                batches=draws.integers(0, EXAMPLES[k], (STEPS[k], min(6, EXAMPLES[k]))),
                seed=0,
                client_id=str(k),
            )
            for k, rule in enumerate(rules)
        ]

    def side_by_side(self, requests: Sequence[TrainRequest] | Sequence[GradientRequest]) -> list[Arrays]:
        """Answer requests as the engine does, clients together."""
        for request in requests:
            ask = self.scheduler.train if isinstance(request, TrainRequest) else self.scheduler.gradient
            self.scheduler.start(str(request.place), lambda ask=ask, request=request: ask(request))  # type: ignore[misc]
        names, found = [str(request.place) for request in requests], {}
        while len(found) < len(names):
            found |= self.scheduler.results([name for name in names if name not in found])
        return [found[name] for name in names]


def rules(name: str, module: nn.Module) -> list[LocalRule]:
    """Return each client's local rule."""
    if name == "sgd":
        return [SGD() for _ in STEPS]
    if name == "prox":
        return [FedProx.LocalRule(FedProx.Settings(proximal_mu=0.4)) for _ in STEPS]
    draws = torch.Generator().manual_seed(3)
    trained = [p for p in module.parameters() if p.requires_grad]
    return [Scaffold.LocalRule(None, [torch.randn(p.shape, generator=draws) / 10 for p in trained]) for _ in STEPS]


def assert_close(found: Sequence[Arrays], expected: Sequence[Arrays]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys()
        for name, values in other.items():
            np.testing.assert_allclose(mine[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    ("rule", "settings"),
    [("sgd", {"momentum": 0.5, "weight_decay": 0.1}), ("prox", {"weight_decay": 0.1}), ("scaffold", {})],
)
def test_clients_train_to_what_they_train_to_alone(
    kind: type[Structured], rule: str, settings: dict[str, float]
) -> None:
    this = Setting(kind)
    requests = this.requests(rules(rule, this.module), **settings)
    expected = [Arithmetic().train(request) for request in requests]
    assert_close(this.side_by_side(requests), expected)
    # Five clients have minibatches of six, and one smaller ones: it trains alone. One step, then fewer are left.
    assert this.form.active == [5, 4, 3, 2]
    moved = [
        max(float(abs(new[name] - r.arrays[name]).max()) for name in new)
        for new, r in zip(expected, requests, strict=True)
    ]
    assert min(moved) > 1e-3


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    "rule",
    [
        AdamW(AdamW.Settings(eps=1e-3)),
        PFedMe.LocalRule(PFedMe.Settings(moreau_steps=2)),
        PerFedAvg.LocalRule(PerFedAvg.Settings(maml_order="first")),
        PerFedAvg.LocalRule(PerFedAvg.Settings()),
    ],
)
def test_rules_that_stack_train_clients_of_equal_steps_to_what_they_train_to_alone(
    kind: type[Structured], rule: LocalRule
) -> None:
    this = Setting(kind)
    requests = [
        replace(request, batches=np.resize(request.batches, (steps * rule.draws(), request.batches.shape[1])))
        for request, steps in zip(this.requests([rule] * CLIENTS), (2, 2, 2, 2, 2, 3), strict=True)
    ]
    with sdpa_kernel(SDPBackend.MATH):  # PyTorch's faster attention is differentiated once
        expected = [Arithmetic().train(request) for request in requests]
        assert_close(this.side_by_side(requests), expected)
    assert set(this.form.active) == {4}  # the others have smaller minibatches, and more steps


def test_training_is_sgd_of_pytorch() -> None:
    """Against torch.optim, and not this project's own loop."""
    this = Setting(Classes)
    requests = this.requests(rules("sgd", this.module), momentum=0.5, weight_decay=0.1)
    for request, found in zip(requests, this.side_by_side(requests), strict=True):
        own = this.task.initial_model(0)
        optimiser = torch.optim.SGD(own.parameters(), lr=0.3, momentum=0.5, weight_decay=0.1)
        for rows in torch.from_numpy(request.batches):
            optimiser.zero_grad()
            x, y = request.data.x, request.data.y
            nn.functional.cross_entropy(own(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call, call-overload, index]
            optimiser.step()
        assert_close([found], [arrays_of(own)])


@pytest.mark.parametrize("kind", [Classes, Tokens, FrozenBelow])
@pytest.mark.parametrize("batch", [True, False])
def test_gradients_are_those_that_clients_find_alone(kind: type[Structured], batch: bool) -> None:
    this = Setting(kind)
    rows = np.array([4, 0, 4])
    requests = [
        GradientRequest(
            this.task, this.module, k, this.pool.client(k).train, arrays_of(this.module), rows if batch else None
        )
        for k in range(CLIENTS)
    ]
    expected = [Arithmetic().gradient(request) for request in requests]
    assert_close(this.side_by_side(requests), expected)
    assert this.form.active == [6 if batch else 5]  # of all examples, one client has fewer
    assert expected[0].keys() == {name for name, p in this.module.named_parameters() if p.requires_grad}


def test_what_is_not_trained_may_differ_between_clients_and_stays() -> None:
    this = Setting(FrozenBelow)
    requests = this.requests(rules("sgd", this.module))
    for k, request in enumerate(requests):
        request.arrays.update({"below.weight": request.arrays["below.weight"] * np.float32(k + 1)})  # type: ignore[attr-defined]
        request.arrays.update({"scale": request.arrays["scale"] + np.float32(k)})  # type: ignore[attr-defined]
    found = this.side_by_side(requests)
    assert_close(found, [Arithmetic().train(request) for request in requests])
    for request, model in zip(requests, found, strict=True):
        for name in ("below.weight", "below.bias", "scale"):
            assert np.array_equal(model[name], request.arrays[name])
    assert not np.allclose(found[0]["last.weight"], found[1]["last.weight"])


def test_shared_parameters_stay_one() -> None:
    this = Setting(Tokens)
    requests = this.requests(rules("sgd", this.module))
    found = this.side_by_side(requests)
    assert_close(found, [Arithmetic().train(request) for request in requests])
    assert all("embedding.weight" in model and "last.weight" not in model for model in found)


class Dropping(nn.Module):
    """What is left of a constant after dropout, times a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.dropout = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(x) * self.weight
        return y


class Sum(Classification):
    """The mean output as loss."""

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
        return outputs.mean()


def test_dropout_is_other_noise_for_each_client_and_only_in_training() -> None:
    """The gradient is the mean of the kept inputs, scaled by 4/3: drawn for each client anew."""
    form = VmapForm(Sum(), Dropping())
    batch = Split(torch.ones(4, 5000, 1), torch.zeros(4, 5000))
    torch.manual_seed(0)
    into = {"weight": torch.zeros(4, 1)}
    with torch.no_grad():
        for training in (True, False):
            clients = Cohort({"weight": torch.ones(4, 1)})
            into["weight"].zero_()
            form.add_gradient(clients, batch, torch.empty(0), Target(into), training)
            if training:
                assert into["weight"].flatten().tolist() == pytest.approx([1.0] * 4, abs=0.05)
                assert len(set(into["weight"].flatten().tolist())) == 4
            else:
                assert into["weight"].flatten().tolist() == pytest.approx([1.0] * 4, abs=1e-5)


def test_a_convolution_is_calculated_client_by_client_on_a_cpu_and_gives_the_same() -> None:
    """Vmap's own way, one grouped convolution, is three times as slow there."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(2, 3, 3, bias=False), nn.Flatten(), nn.Linear(12, 3))
    task, data = Classification(), torch.randn(4, 7, 2, 6)
    labels = torch.randint(0, 3, (4, 7))
    form = VmapForm(task, module)
    assert type(form.objective.model[0]) is not nn.Conv1d  # type: ignore[index]
    assert type(module[0]) is nn.Conv1d
    stacked = {name: torch.stack([p.detach() * (k + 1) for k in range(4)]) for name, p in module.named_parameters()}
    examples = Examples(data.flatten(0, 1), labels.flatten(), [0, 7, 14, 21, 28])
    batches, _ = line_up([torch.arange(7 * k, 7 * k + 7).unsqueeze(0) for k in range(4)], CPU)
    before = {name: p.clone() for name, p in stacked.items()}
    with torch.no_grad():
        train(form, Cohort(stacked), examples, batches, LocalTrainingSettings(learning_rate=1.0, batch_size=7))
    for k in range(4):
        module.load_state_dict({name: p[k] for name, p in before.items()})
        loss = nn.functional.cross_entropy(module(data[k]), labels[k])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for (name, p), gradient in zip(module.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(stacked[name][k], p.detach() - gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", ["maxfl", "scaffold"])
def test_a_run_by_vmap_is_the_run_one_after_another(tmp_path: Path, strategy: str) -> None:
    settings = {"task": "tests.simulation.structures:Tokens", "clients": CLIENTS, "strategy": strategy, "rounds": 2}
    config = RunConfig.parse({**settings, "local-steps": 3, "batch-size": 6, "solo.steps": 3, "mandatory-rounds": 2})
    models, histories = [], []
    for mode in ("vmap", "sequential"):
        run = RunPlan.of(config, tmp_path / mode).folder({})
        simulate(config, run, Simulation(mode, threads=1))
        models.append(read_safetensors(run.path / MODEL)[0])
        histories.append([line["loss"] for line in Record(run.path).history])
    assert histories[0] == pytest.approx(histories[1], rel=1e-4)
    assert_close([models[0]], [models[1]])
