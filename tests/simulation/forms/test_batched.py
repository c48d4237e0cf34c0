"""Batched training against one client at a time, by PyTorch's own autograd and optimiser."""

import copy
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from fedappeal.core.local_rule import BatchedTerms
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.forms import convolution
from fedappeal.simulation.forms.batched import Cohort, Examples, NotBatchable, Target, line_up, train
from fedappeal.simulation.forms.layered import BatchedModel, LayeredForm
from fedappeal.tasks.models import cnn, logistic, mlp
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold
from tests.problems import Classification

CPU = torch.device("cpu")
CLASSIFICATION = Classification()
STEPS, SIZES = (6, 2, 4, 6), (8, 8, 5, 3)
"""Of four clients: local steps, and examples a step."""


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: _without_dropout(mlp(12, 3)), (12,)),
    "logistic": (lambda: logistic(12, 3), (3, 2, 2)),
    "cnn": (lambda: cnn((2, 6, 6), 3), (2, 6, 6)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(12, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)), (12,)),
    "layer norm alone": (
        lambda: nn.Sequential(nn.Linear(12, 3), nn.LayerNorm(3, elementwise_affine=False), nn.Tanh()),
        (12,),
    ),
    "layer norm first": (
        lambda: nn.Sequential(nn.LayerNorm((3, 4)), nn.Flatten(), nn.Linear(12, 3, bias=False)),
        (3, 4),
    ),
    "linear over rows": (lambda: nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Flatten(), nn.Linear(15, 3)), (3, 4)),
    "strided": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=False),
            nn.ELU(),
            nn.AvgPool2d(2),
            nn.Conv2d(4, 3, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        (2, 8, 8),
    ),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), nn.Sequential(nn.ReLU(), nn.Linear(4, 3))
        ),
        (12,),
    ),
}


def _without_dropout(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model


def problem(name: str) -> tuple[nn.Module, Examples, list[Tensor]]:
    """A model, 40 examples, and each client's minibatches."""
    torch.manual_seed(0)
    build, shape = MODELS[name]
    rows = [torch.randint(0, 40, (steps, size)) for steps, size in zip(STEPS, SIZES, strict=True)]
    return build(), Examples(torch.randn(40, *shape), torch.randint(0, 3, (40,)), [0, 10, 20, 30, 40]), rows


def by_autograd(
    model: nn.Module,
    examples: Examples,
    rows: Tensor,
    training: LocalTrainingSettings,
    mu: float,
    correction: dict[str, Tensor],
) -> nn.Module:
    """One client, with torch.optim's SGD on the objective written out."""
    own = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD(
        own.parameters(), lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    start = {name: p.detach().clone() for name, p in own.named_parameters()}
    for batch in rows:
        loss = nn.functional.cross_entropy(own(examples.x[batch]), examples.y[batch])
        for name, p in own.named_parameters():
            loss = loss + mu / 2 * ((p - start[name]) ** 2).sum()
            if correction:
                loss = loss + (p * correction[name]).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return own


def terms(mu: float, correction: dict[str, Tensor], parameters: dict[str, Tensor]) -> BatchedTerms | None:
    """What FedProx's and SCAFFOLD's rules add, both at once; the correction is by place."""
    pulls = [FedProx.LocalRule(FedProx.Settings(proximal_mu=mu)) for _ in STEPS]
    corrects = [Scaffold.LocalRule(None, [c[place] for c in correction.values()]) for place in range(len(STEPS))]
    found = [FedProx.LocalRule.batched_terms(pulls, parameters)]
    if correction:
        found.append(Scaffold.LocalRule.batched_terms(corrects, parameters))
    both = [term for term in found if term is not None]

    def add(name: str, target: Tensor, before: Tensor, active: int, sign: float) -> None:
        for term in both:
            term.add(name, target, before, active, sign)

    return BatchedTerms(add, any(term.needs_before for term in both)) if both else None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("settings", "mu", "corrected"),
    [({}, 0.0, False), ({"momentum": 0.5, "weight_decay": 0.1}, 0.2, True), ({"weight_decay": 0.1}, 0.3, True)],
)
def test_batched_training_equals_one_client_at_a_time(
    name: str, settings: dict[str, float], mu: float, corrected: bool
) -> None:
    model, examples, rows = problem(name)
    training = LocalTrainingSettings(learning_rate=0.2, batch_size=8, local_steps=6, **settings)  # type: ignore[arg-type]
    batches, places = line_up(rows, CPU)
    parameters = {n: p.detach().expand(4, *p.shape).clone() for n, p in model.named_parameters()}
    correction = {n: torch.randn_like(p) * 0.1 for n, p in parameters.items()} if corrected else {}
    with torch.no_grad():
        form = LayeredForm(CLASSIFICATION, model)
        train(form, Cohort(parameters), examples, batches, training, terms(mu, correction, parameters))
    for place, k in enumerate(places):
        of_client = {n: c[place] for n, c in correction.items()}
        expected = dict(by_autograd(model, examples, rows[k], training, mu, of_client).named_parameters())
        for n, p in parameters.items():
            torch.testing.assert_close(p[place], expected[n].detach(), rtol=1e-4, atol=1e-5)
        moved = max((p[place] - dict(model.named_parameters())[n]).abs().max().item() for n, p in parameters.items())
        assert moved > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_autograd_through_the_layers_finds_the_same_gradients(name: str) -> None:
    model, examples, rows = problem(name)
    batches, _ = line_up(rows, CPU)
    draws = torch.Generator().manual_seed(1)
    parameters = {n: p + 0.05 * torch.randn(4, *p.shape, generator=draws) for n, p in model.named_parameters()}
    parameters = {n: p.detach().requires_grad_() for n, p in parameters.items()}
    form, cohort = LayeredForm(CLASSIFICATION, model), Cohort(parameters)
    for step in (0, 1):
        batch, weights = examples.take(batches.rows[step]), batches.weights[step]
        sums = {n: torch.zeros_like(p) for n, p in parameters.items()}
        with torch.no_grad():
            form.add_gradient(cohort, batch, weights, Target(sums), training=True)
        found = torch.autograd.grad(form.loss(cohort, batch, weights), list(parameters.values()))
        for expected, gradient in zip(sums.values(), found, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["cnn", "strided"])
def test_grouped_convolutions_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerator does, on the CPU."""
    model, examples, rows = problem(name)
    batches, _ = line_up(rows, CPU)
    training, found = LocalTrainingSettings(learning_rate=0.2, batch_size=8, local_steps=6), []
    grouped = Mock(side_effect=convolution._channels)
    monkeypatch.setattr(convolution, "_channels", grouped)
    for devices in ({"cpu"}, set[str]()):
        monkeypatch.setattr(convolution, "ONE_BY_ONE", devices)
        parameters = {n: p.detach().expand(4, *p.shape).clone() for n, p in model.named_parameters()}
        with torch.no_grad():
            train(LayeredForm(CLASSIFICATION, model), Cohort(parameters), examples, batches, training)
        found.append(parameters)
    for n, one_by_one in found[0].items():
        torch.testing.assert_close(one_by_one, found[1][n], rtol=1e-4, atol=1e-5)
    assert grouped.called


def test_a_line_up_puts_clients_with_most_steps_first() -> None:
    _, _, rows = problem("logistic")
    batches, places = line_up(rows, CPU)
    assert places == [0, 3, 2, 1]
    assert batches.active == [4, 4, 3, 3, 2, 2]
    assert batches.rows.shape == batches.weights.shape == (6, 4, 8)
    assert batches.rows[0, 2, :5].tolist() == rows[2][0].tolist()
    assert batches.weights[0, 2].tolist() == pytest.approx([0.2] * 5 + [0.0] * 3)


def test_a_rule_that_reads_the_parameters_before_the_step_has_to_say_so() -> None:
    model, examples, rows = problem("logistic")
    batches, _ = line_up(rows, CPU)
    training = LocalTrainingSettings(learning_rate=0.2, batch_size=8, local_steps=6)
    parameters = {n: p.detach().expand(4, *p.shape).clone() for n, p in model.named_parameters()}

    def add(name: str, target: Tensor, before: Tensor, active: int, sign: float) -> None:
        target.add_(before, alpha=sign)

    def trained(needs_before: bool) -> None:
        terms = BatchedTerms(add, needs_before)
        train(LayeredForm(CLASSIFICATION, model), Cohort(parameters), examples, batches, training, terms)

    with torch.no_grad():
        trained(needs_before=True)
        with pytest.raises(RuntimeError):
            trained(needs_before=False)


def test_dropout_keeps_the_mean_and_only_in_training() -> None:
    model = BatchedModel(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.25)))
    parameters = {"0.weight": torch.ones(2, 1, 1), "0.bias": torch.zeros(2, 1)}
    x = torch.ones(2, 20_000, 1)
    torch.manual_seed(0)
    out = model.forward(x, parameters, training=True)
    assert sorted(set(out.flatten().tolist())) == [0.0, pytest.approx(4 / 3)]
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    # The gradient passes where the unit was kept, scaled alike: d sum / dw = sum of the kept, scaled inputs.
    into = {name: torch.zeros_like(p) for name, p in parameters.items()}
    model.backward(torch.ones_like(out), parameters, Target(into))
    torch.testing.assert_close(into["0.weight"].flatten(), out.sum(dim=(1, 2)), rtol=1e-4, atol=0.0)
    assert torch.equal(model.forward(x, parameters, training=False), x)


class Doubled(nn.Linear):
    """A subclass may compute anything."""


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), r"layer '1' \(BatchNorm1d\) has no batched form"),
        (nn.Sequential(nn.Flatten(), nn.Sequential(Doubled(2, 2))), r"layer '1.0' \(Doubled\) has no batched form"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")), r"layer '0' \(Conv2d\)"),
        (nn.LSTM(2, 2), r"layer 'model' \(LSTM\)"),
        (nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)), "'0.weight' is not trained"),
        (nn.Sequential(*[nn.Linear(2, 2)] * 2), "layers share parameters"),
    ],
)
def test_what_cannot_be_batched_is_named(model: nn.Module, reason: str) -> None:
    with pytest.raises(NotBatchable, match=reason):
        BatchedModel(model)
