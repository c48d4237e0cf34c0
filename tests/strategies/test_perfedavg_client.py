"""Per-FedAvg's local rule against quadratics by hand and against autograd, and the adapted evaluation."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

from client.learner import Job
from client.training.models import arrays_of
from client.training.sgd import SGD
from fedappeal.protocol.draws import Minibatches
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.training import LocalTrainingSettings
from strategies import PerFedAvg, PFedMe
from tests.client.training.descents import descended
from tests.node import changed
from tests.problems import local_problem
from tests.strategies.adapted import (
    RUN,
    adaptation_of,
    check_by_written_out_steps,
    check_reported_besides,
    evaluated,
    participant_of,
)

TRAINING = LocalTrainingSettings(learning_rate=0.5, batch_size=1)


def maml(alpha: float = 0.25, order: str = "second") -> PerFedAvg.LocalRule:
    settings = PerFedAvg.Settings.model_construct(maml_learning_rate=alpha, maml_order=order)  # type: ignore[arg-type]
    return PerFedAvg.LocalRule(settings)


def trained(rule: PerFedAvg.LocalRule, w: float, batches: list[int]) -> float:
    return descended(rule, w, [[b] for b in batches], TRAINING)


def test_maml_by_hand() -> None:
    # a(D) = 0: the inner step goes from 1 to 1 - 0.25 = 0.75; a(D') = 2: the gradient there is -1.25.
    # Second order: (1 - 0.25 * 1) * -1.25 = -0.9375. Steps of 0.5.
    assert trained(maml(), 1.0, [0, 1, 2]) == pytest.approx(1 + 0.46875, rel=1e-15)
    assert trained(maml(order="first"), 1.0, [0, 1]) == pytest.approx(1 + 0.625, rel=1e-15)
    # FO's second step from 1.625, a(D) = 4, a(D') = 0: inner 1.625 + 0.59375 = 2.21875, w = 1.625 - 1.109375
    assert trained(maml(order="first"), 1.0, [0, 1, 2, 0]) == pytest.approx(0.515625, rel=1e-15)
    assert trained(maml(), 1.0, []) == 1.0


@given(
    h=st.floats(0.01, 10),
    a=st.floats(-5, 5),
    w=st.floats(-5, 5),
    alpha=st.floats(0.001, 0.5),
    beta=st.floats(0.01, 1),
)
def test_the_meta_gradient_of_a_quadratic(h: float, a: float, w: float, alpha: float, beta: float) -> None:
    training = LocalTrainingSettings(learning_rate=beta, batch_size=1)
    for order, factor in (("second", (1 - alpha * h) ** 2), ("first", 1 - alpha * h)):
        rule = maml(alpha, order)
        got = descended(rule, w, [[0]] * rule.draws(), training, h, (a,))
        assert got == pytest.approx(w - beta * factor * h * (w - a), rel=1e-9, abs=1e-9)


def network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    layers = OrderedDict(one=nn.Linear(3, 4), bend=nn.Tanh(), two=nn.Linear(4, 3))
    return nn.Sequential(layers).double(), torch.randn(30, 3, dtype=torch.float64), torch.randint(3, (30,))


Weights = dict[str, torch.Tensor]


@pytest.mark.parametrize("same", [True, False])
def test_the_second_order_is_the_derivative_of_the_written_out_objective(same: bool) -> None:
    model, x, y = network()
    loss = nn.functional.cross_entropy
    rng = np.random.default_rng(0)
    inner, outer, hessian = rng.permutation(30).reshape(3, 10)
    if same:
        hessian = inner
    start: Weights = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}

    def f(weights: Weights, batch: np.ndarray) -> torch.Tensor:
        return loss(functional_call(model, weights, (x[batch],)), y[batch])

    def stepped(batch: np.ndarray, differentiable: bool) -> Weights:
        gradients = torch.autograd.grad(f(start, batch), list(start.values()), create_graph=differentiable)
        return {k: p - 0.3 * g for (k, p), g in zip(start.items(), gradients, strict=True)}

    if same:  # D'' = D: F(w) = f(w - alpha grad f(w, D), D'), differentiated as a whole
        expected = torch.autograd.grad(f(stepped(inner, True), outer), list(start.values()))
    else:  # (I - alpha H'') v with the whole Hessian matrix, 31 x 31
        there = {k: p.detach().requires_grad_() for k, p in stepped(inner, False).items()}
        v = torch.cat([g.flatten() for g in torch.autograd.grad(f(there, outer), list(there.values()))])
        sizes = [p.numel() for p in start.values()]

        def flat(vector: torch.Tensor) -> torch.Tensor:
            parts = vector.split(sizes)
            return f({k: s.view_as(p) for (k, p), s in zip(start.items(), parts, strict=True)}, hessian)

        matrix = torch.autograd.functional.hessian(flat, torch.cat([p.detach().flatten() for p in start.values()]))
        moved = (v - 0.3 * matrix @ v).split(sizes)
        expected = tuple(m.view_as(p) for m, p in zip(moved, start.values(), strict=True))

    training = LocalTrainingSettings(learning_rate=0.7, batch_size=10)
    maml(0.3).train(model, local_problem(loss, x, y, np.stack([inner, outer, hessian]), training))
    for (name, p), g in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), (start[name] - 0.7 * g).detach(), rtol=1e-12, atol=1e-14)


def test_the_first_order_without_an_inner_step_is_sgd_on_every_second_minibatch() -> None:
    batches = np.asarray(Minibatches(0, "a", 1, 30, 8, 5))
    training = LocalTrainingSettings(learning_rate=0.2, batch_size=5)
    (one, x, y), (other, _, _) = network(), network()
    maml(0.0, "first").train(one, local_problem(nn.functional.cross_entropy, x, y, batches, training))
    SGD().train(other, local_problem(nn.functional.cross_entropy, x, y, batches[1::2], training))
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("key", "value"), [("momentum", 0.9), ("weight-decay", 0.01)])
def test_what_the_update_does_not_have_is_refused(key: str, value: float) -> None:
    training = LocalTrainingSettings.parse({"learning-rate": 0.5, "batch-size": 1, key: value})
    with pytest.raises(ConfigError, match=f"^{key} = {value} is not allowed with local-rule = 'maml': 0$"):
        maml().check(training)


# -- in a client ---------------------------------------------------------------------------------------

CONFIG = changed(RUN, strategy="perfedavg", perfedavg__adaptation_steps=3, perfedavg__maml_learning_rate=0.2)


@pytest.mark.parametrize(("order", "draws"), [("second", 3), ("first", 2)])
def test_each_step_gets_minibatches_of_its_own(monkeypatch: pytest.MonkeyPatch, order: str, draws: int) -> None:
    one = participant_of(CONFIG)
    seen: list[NDArray[np.int64]] = []
    monkeypatch.setattr(PerFedAvg.LocalRule, "train", lambda rule, model, problem: seen.append(problem.batches))
    training = LocalTrainingSettings.parse({"learning-rate": 0.1, "batch-size": 8, "local-steps": 5})
    one.learner.train(arrays_of(one.learner.task.initial_model(0)), Job(maml(order=order), training, "batches", 4))
    expected = np.asarray(Minibatches(CONFIG.seed, one.client_id, 4, len(one.learner.data.train), 5 * draws, 8))
    np.testing.assert_array_equal(seen[0], expected)
    assert SGD().draws() == PFedMe.LocalRule().draws() == 1


def test_an_adapted_model_is_the_global_one_after_written_out_steps() -> None:
    check_by_written_out_steps(CONFIG, steps=3, rate=0.2, pull=0.0)


def test_no_steps_are_no_adaptation() -> None:
    none: dict[str, Scalar] = {"perfedavg__adaptation_steps": 0}
    assert adaptation_of(participant_of(changed(CONFIG, **none))) is None
    assert adaptation_of(participant_of(changed(CONFIG, strategy="fedavg"))) is None
    assert evaluated(changed(CONFIG, **none)) == evaluated(changed(CONFIG, strategy="fedavg"))
    with pytest.raises(ConfigError, match=r"perfedavg\.adaptation-steps = -1 is not allowed"):
        participant_of(changed(CONFIG, perfedavg__adaptation_steps=-1))


def test_an_evaluation_reports_the_adapted_model_besides() -> None:
    check_reported_besides(CONFIG)
