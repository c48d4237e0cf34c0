"""The rules of Per-FedAvg and pFedMe against quadratics by hand and against autograd, and the adapted evaluation."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

import client.app
import client.registry
from client.descent import sgd
from client.models import arrays_of
from client.participant import Participant
from client.personalised import adaptation, maml, moreau
from client.rules import RULES, draws_a_step
from client.settings import NodeSettings
from client.state import ContextStore
from client.work import LocalWork
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from fedappeal.protocol.draws import batch_indices
from fedappeal.protocol.packing import Layout

pytestmark = pytest.mark.usefixtures("fresh")

WORK = LocalWork(
    learning_rate=0.5,
    batch_size=1,
    maml_learning_rate=0.25,
    moreau_lambda=1.0,
    moreau_steps=2,
    personal_learning_rate=0.25,
)
TARGETS = (0.0, 2.0, 4.0)


class Quadratic(nn.Module):
    """Predicts the parameter w, whatever x is."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x))


def trained(
    rule: Callable[..., None],
    w: float,
    batches: list[int],
    work: LocalWork,
    h: float = 1.0,
    targets: object = TARGETS,
) -> float:
    """Train on f(w) = h/2 (w - a)^2, where a batch of one example has a = its target."""
    model, y = Quadratic(w), torch.tensor(targets, dtype=torch.float64)
    rule(
        model,
        lambda prediction, a: h * ((prediction - a) ** 2).mean() / 2,
        torch.zeros(len(y), 1),
        y,
        np.array(batches, dtype=np.int64).reshape(-1, 1),
        work,
    )
    return model.w.item()


def test_maml_by_hand() -> None:
    # a(D) = 0: the inner step goes from 1 to 1 - 0.25 = 0.75; a(D') = 2: the gradient there is -1.25.
    # Second order: (1 - 0.25 * 1) * -1.25 = -0.9375. Steps of 0.5.
    first = WORK.model_copy(update={"maml_order": "first"})
    assert trained(maml, 1.0, [0, 1, 2], WORK) == pytest.approx(1 + 0.46875, rel=1e-15)
    assert trained(maml, 1.0, [0, 1], first) == pytest.approx(1 + 0.625, rel=1e-15)
    # FO's second step from 1.625, a(D) = 4, a(D') = 0: inner 1.625 + 0.59375 = 2.21875, w = 1.625 - 1.109375
    assert trained(maml, 1.0, [0, 1, 2, 0], first) == pytest.approx(0.515625, rel=1e-15)
    assert trained(maml, 1.0, [], WORK) == 1.0


@given(
    h=st.floats(0.01, 10),
    a=st.floats(-5, 5),
    w=st.floats(-5, 5),
    alpha=st.floats(0.001, 0.5),
    beta=st.floats(0.01, 1),
)
def test_the_meta_gradient_of_a_quadratic(h: float, a: float, w: float, alpha: float, beta: float) -> None:
    work = LocalWork(learning_rate=beta, batch_size=1, maml_learning_rate=alpha)
    for order, factor in (("second", (1 - alpha * h) ** 2), ("first", 1 - alpha * h)):
        ordered = work.model_copy(update={"maml_order": order})
        got = trained(maml, w, [0] * draws_a_step("maml", ordered), ordered, h, (a,))
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

    work = LocalWork(learning_rate=0.7, batch_size=10, maml_learning_rate=0.3)
    maml(model, loss, x, y, np.stack([inner, outer, hessian]), work)
    for (name, p), g in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), (start[name] - 0.7 * g).detach(), rtol=1e-12, atol=1e-14)


def test_the_first_order_without_an_inner_step_is_sgd_on_every_second_minibatch() -> None:
    batches = batch_indices(0, "a", 1, 30, 8, 5)
    work = LocalWork(learning_rate=0.2, batch_size=5, maml_order="first").model_copy(update={"maml_learning_rate": 0})
    (one, x, y), (other, _, _) = network(), network()
    maml(one, nn.functional.cross_entropy, x, y, batches, work)
    sgd(other, nn.functional.cross_entropy, x, y, batches[1::2], work)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_moreau_by_hand() -> None:
    # a = 0. theta: 1 -> 0.75 -> 0.75 - 0.25 (0.75 + (0.75 - 1)) = 0.625; w = 1 - 0.5 (1 - 0.625) = 0.8125.
    assert trained(moreau, 1.0, [0], WORK) == pytest.approx(0.8125, rel=1e-15)
    # theta goes on from 0.625: 0.625 - 0.25 (0.625 - 0.1875) = 0.515625, then - 0.25 (0.515625 - 0.296875) =
    # 0.4609375; w = 0.8125 - 0.5 (0.8125 - 0.4609375)
    assert trained(moreau, 1.0, [0, 0], WORK) == pytest.approx(0.63671875, rel=1e-15)
    assert trained(moreau, 1.0, [], WORK) == 1.0


@given(
    h=st.floats(0.01, 10),
    a=st.floats(-5, 5),
    w=st.floats(-5, 5),
    strength=st.floats(0.1, 50),
    eta=st.floats(0.001, 1),
    steps=st.integers(1, 6),
)
def test_the_step_is_the_gradient_of_the_moreau_envelope(
    h: float, a: float, w: float, strength: float, eta: float, steps: int
) -> None:
    # theta* = (h a + lambda w) / (h + lambda): one inner step of 1 / (h + lambda) is there, and all others stay there
    # only because the proximal term pulls back.
    work = LocalWork(
        learning_rate=eta,
        batch_size=1,
        moreau_lambda=strength,
        moreau_steps=steps,
        personal_learning_rate=1 / (h + strength),
    )
    personal = (h * a + strength * w) / (h + strength)
    got = trained(moreau, w, [0], work, h, (a,))
    assert got == pytest.approx(w - eta * strength * (w - personal), rel=1e-9, abs=1e-9)
    # the envelope itself is h lambda / (2 (h + lambda)) (w - a)^2
    assert got == pytest.approx(w - eta * h * strength / (h + strength) * (w - a), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("key", "value"), [("momentum", 0.9), ("weight-decay", 0.01)])
@pytest.mark.parametrize("rule", ["maml", "moreau"])
def test_what_the_updates_do_not_have_is_refused(rule: str, key: str, value: float) -> None:
    work = WORK.model_copy(update={key.replace("-", "_"): value})
    with pytest.raises(ConfigError, match=f"^{key} = {value} is not allowed with local-rule = '{rule}': 0$"):
        trained(RULES[rule], 1.0, [0, 1, 2], work)


# -- in a client ---------------------------------------------------------------------------------------

CONFIG = RunConfig(clients=4, warmup_steps=2, batch_size=8, model="logistic", momentum=0.5)


def participant() -> Participant:
    return Participant(CONFIG, NodeSettings(partition_id=1, device="cpu"), ContextStore(RecordDict()))


@pytest.mark.parametrize(("order", "draws"), [("second", 3), ("first", 2)])
def test_each_step_gets_minibatches_of_its_own(monkeypatch: pytest.MonkeyPatch, order: str, draws: int) -> None:
    one, seen = participant(), []
    monkeypatch.setitem(RULES, "maml", lambda *arguments: seen.append(arguments[4]))
    work = LocalWork.parse({"learning-rate": 0.1, "batch-size": 8, "local-steps": 5, "maml-order": order})
    one.train(arrays_of(one.task.initial_model(0)), 4, "maml", work)
    expected = batch_indices(CONFIG.seed, one.client_id, 4, len(one.data.train), 5 * draws, 8)
    np.testing.assert_array_equal(seen[0], expected)
    assert draws_a_step("sgd", work) == draws_a_step("moreau", work) == 1


TOLD: dict[str, dict[str, Scalar]] = {
    "maml": {keys.ADAPTATION_STEPS: 3, "maml-learning-rate": 0.2},
    "moreau": {
        keys.ADAPTATION_STEPS: 3,
        keys.LOCAL_RULE: "moreau",
        "moreau-lambda": 2.0,
        "personal-learning-rate": 0.2,
    },
}


@pytest.mark.parametrize("rule", ["maml", "moreau"])
def test_an_adapted_model_is_the_global_one_after_written_out_steps(rule: str) -> None:
    one = participant()
    model = one.task.initial_model(0)
    arrays, x, y = arrays_of(model), one.data.train.x, one.data.train.y
    asked = adaptation(TOLD[rule], CONFIG.as_config())
    assert asked is not None
    plain = one.judge(arrays, "m", "test")
    found = one.judge(arrays, "m", "test", adaptation=asked)

    start = [p.detach().clone() for p in model.parameters()]
    for batch in batch_indices(CONFIG.seed, one.client_id, 0, len(y), 3, 8, "adaptation"):
        gradients = torch.autograd.grad(one.task.loss(model(x[batch]), y[batch]), list(model.parameters()))
        for p, g, s in zip(model.parameters(), gradients, start, strict=True):
            p.data -= 0.2 * (g + (2.0 * (p.data - s) if rule == "moreau" else 0.0))
    expected = one.task.loss(model(one.data.test.x), one.data.test.y).item()
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.loss < plain.loss
    assert one.judge(arrays, "m", "test") == plain


def test_no_steps_are_no_adaptation() -> None:
    assert adaptation({}, CONFIG.as_config()) is None
    assert adaptation({keys.ADAPTATION_STEPS: 0}, CONFIG.as_config()) is None
    with pytest.raises(ConfigError, match="local-steps = -1"):
        adaptation({keys.ADAPTATION_STEPS: -1}, CONFIG.as_config())


def evaluated(told: dict[str, Scalar], **node: Scalar) -> dict[str, object]:
    settings: dict[str, Scalar] = {"partition-id": 1, "device": "cpu", **node}
    context = Context(7, 3, settings, RecordDict(), CONFIG.as_config())  # type: ignore[arg-type]
    arrays = arrays_of(participant().task.initial_model(0))
    content = RecordDict(
        {keys.ARRAYS: Layout.of(arrays).pack(arrays), keys.CONFIG: ConfigRecord({keys.SPLIT: "test", **told})}
    )
    return dict(client.app.app(Message(content, 3, "evaluate"), context).content.metric_records[keys.METRICS])


@pytest.mark.parametrize("rule", ["maml", "moreau"])
def test_an_evaluation_reports_the_adapted_model_besides(rule: str) -> None:
    plain, told = evaluated({}), evaluated(TOLD[rule])
    assert {k: told[k] for k in plain} == plain
    assert set(told) - set(plain) == {keys.ADAPTED_ACCURACY, keys.ADAPTED_LOSS}
    assert told[keys.ADAPTED_LOSS] != plain[keys.LOSS]
    assert evaluated(TOLD[rule]) == told
    assert set(evaluated(TOLD[rule], **{"report-loss": False})) == set(told) - {keys.LOSS, keys.ADAPTED_LOSS}
    assert evaluated({**TOLD[rule], keys.ADAPTATION_STEPS: 0}) == plain
