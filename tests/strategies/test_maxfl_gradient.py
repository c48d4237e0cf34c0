"""MaxFL's round against equations 3 to 6 by automatic differentiation, through messages and the real ClientApp."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear

from client.app import Clients, app_of
from client.roster import Participants
from client.training.models import arrays_of
from client.training.task_learner import TaskLearners
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.tasks import load_task
from strategies import MaxFL, appeal_weight
from strategies.maxfl import APPEAL_WEIGHT
from tests.grid import Handler, MemoryGrid
from tests.node import run_config

CONFIG = run_config(clients=4, model="logistic", learning_rate=0.3, local_steps=1, batch_size=10_000)
TASK = load_task(CONFIG.task_settings())
INITIAL = arrays_of(TASK.initial_model(0))
LAYOUT = Layout.of(INITIAL)
NAMES = ("output.weight", "output.bias")
RHO = (2.4, 1.0, 3.5, 2.0)
"""Around the fresh model's loss, near ln 10 = 2.3; each client's own."""


def volunteer(partition: int, config: RunConfig = CONFIG, **node: Scalar) -> Handler:
    """One client in a process of its own; its run's settings name no strategy, so that each message may."""
    settings: dict[str, Scalar] = {"partition-id": partition, "device": "cpu", "fixed-requirement": RHO[partition]}
    run = {key: value for key, value in config.as_config().items() if key != "strategy"}
    app, context = app_of(Clients(Participants(TaskLearners()))), Context(7, 3, settings | node, RecordDict(), run)
    return lambda message: app(message, context)


def one_round(strategy: MaxFL, start: ArrayRecord, nodes: dict[int, Handler]) -> ArrayRecord | None:
    grid = MemoryGrid(nodes)
    replies = grid.send_and_receive(strategy.configure_train(1, start, ConfigRecord(), grid))
    return strategy.aggregate_train(1, replies)[0]


def parameters(arrays: dict[str, np.ndarray]) -> list[torch.Tensor]:
    return [torch.tensor(arrays[name], dtype=torch.float64, requires_grad=True) for name in NAMES]


def loss_of(w: list[torch.Tensor], partition: int) -> torch.Tensor:
    """F_k: cross-entropy of a linear classifier, in float64."""
    train = TASK.load(partition).train
    return cross_entropy(linear(train.x.flatten(1).double(), *w), train.y)


@pytest.mark.parametrize("joining", [[0, 1, 2, 3], [0, 2]])
def test_a_round_of_real_clients_is_a_gradient_step_on_the_appeal_objective(joining: list[int]) -> None:
    strategy = MaxFL(server_lr=0.8, stabilizer=0.05, mandatory_rounds=1)
    nodes = {10 + k: volunteer(k) for k in joining}
    new = one_round(strategy, LAYOUT.pack(INITIAL), nodes)
    assert new is not None
    moved = LAYOUT.unpack(new)

    w = parameters(INITIAL)
    objective = sum(torch.sigmoid(loss_of(w, k) - RHO[k]) for k in joining) / len(joining)  # equation 3 over S
    assert isinstance(objective, torch.Tensor)
    gradient = torch.autograd.grad(objective, w)
    with torch.no_grad():
        satisfied = [torch.sigmoid(loss_of(w, k) - RHO[k]).item() for k in joining]
    weight = sum(s * (1 - s) for s in satisfied)
    rate = 0.3 * 0.8 * len(joining) / (weight + 0.05)  # eta_l * eta_g * M / (sum q_k + epsilon)
    for name, g in zip(NAMES, gradient, strict=True):
        np.testing.assert_allclose(moved[name] - INITIAL[name], -rate * g.numpy(), rtol=1e-3, atol=2e-7)
    steps = np.concatenate([(moved[n] - INITIAL[n]).ravel() for n in NAMES]).astype(np.float64)
    slopes = np.concatenate([g.numpy().ravel() for g in gradient])
    cosine = steps @ slopes / np.linalg.norm(steps) / np.linalg.norm(slopes)
    assert cosine == pytest.approx(-1, abs=1e-9)
    assert np.linalg.norm(steps) == pytest.approx(rate * np.linalg.norm(slopes), rel=1e-5)
    after = parameters(moved)
    assert sum(torch.sigmoid(loss_of(after, k) - RHO[k]).item() for k in joining) < sum(satisfied)


def test_a_client_of_whom_too_much_is_asked_does_not_move_the_model() -> None:
    """Gaps of 1000: not NaN, and within rounding the step without those clients."""
    hopeless = {12: volunteer(2, **{"fixed-requirement": -1000.0}), 13: volunteer(3, **{"fixed-requirement": 1000.0})}
    nodes = {10 + k: volunteer(k) for k in (0, 1)}
    with_, without = (
        one_round(MaxFL(mandatory_rounds=1), LAYOUT.pack(INITIAL), which) for which in (nodes | hopeless, nodes)
    )
    assert with_ is not None
    assert without is not None
    np.testing.assert_allclose(with_["flat"].numpy(), without["flat"].numpy(), rtol=1e-6)
    alone = one_round(MaxFL(mandatory_rounds=1), LAYOUT.pack(INITIAL), hopeless)
    assert alone is not None
    np.testing.assert_allclose(alone["flat"].numpy(), LAYOUT.pack(INITIAL)["flat"].numpy(), rtol=1e-6)


def quadratic(minimum: np.ndarray, curvature: np.ndarray, rho: float, local_lr: float) -> Handler:
    """A client with F_k(w) = 1/2 sum_j a_j (w_j - m_j)^2 that takes one gradient step, worked out by hand."""

    def answer(message: Message) -> Message:
        w = message.content.array_records[keys.ARRAYS]["w"].numpy()
        loss = float(0.5 * curvature @ (w - minimum) ** 2)
        local = w - local_lr * curvature * (w - minimum)
        metrics = MetricRecord({keys.NUM_EXAMPLES: 1, keys.DECISION: 1, APPEAL_WEIGHT: appeal_weight(loss, rho)})
        content = RecordDict({keys.METRICS: metrics, keys.ARRAYS: ArrayRecord({"w": Array(local)})})
        return Message(content, reply_to=message)

    return answer


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 10.0, 1000.0]))
def test_clients_with_different_quadratics(clients: int, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    minima = rng.normal(size=(clients, 3), scale=spread)
    curvatures = rng.uniform(0.1, 5.0, size=(clients, 3))
    rho = rng.uniform(0, spread**2, size=clients)
    local_lr, server_lr, stabilizer = rng.uniform(0.001, 0.1), rng.uniform(0.1, 2.0), rng.uniform(1e-4, 1.0)
    start = rng.normal(size=3)
    new = one_round(
        MaxFL(server_lr=server_lr, stabilizer=stabilizer),
        ArrayRecord({"w": Array(start)}),
        {10 + k: quadratic(minima[k], curvatures[k], rho[k], local_lr) for k in range(clients)},
    )
    assert new is not None

    w = torch.tensor(start, requires_grad=True)
    losses = 0.5 * (torch.from_numpy(curvatures) * (w - torch.from_numpy(minima)) ** 2).sum(dim=1)
    gap = losses - torch.from_numpy(rho)
    # Equation 3; above 0 as 1 - sigmoid(-x), because s (1 - s) loses its digits where s is near 1.
    objective = torch.where(gap > 0, 1 - torch.sigmoid(-gap), torch.sigmoid(gap)).mean()
    (gradient,) = torch.autograd.grad(objective, w)
    weight = (torch.sigmoid(gap) * torch.sigmoid(-gap)).sum().item()
    expected = -local_lr * server_lr * clients / (weight + stabilizer) * gradient.numpy()
    size = np.linalg.norm(start) + np.linalg.norm(expected)
    np.testing.assert_allclose(new["w"].numpy() - start, expected, rtol=1e-9, atol=1e-12 * size)


@pytest.mark.parametrize("steps", [1, 5])
def test_the_weight_after_local_tuning_by_hand(steps: int) -> None:
    """Table 4: k minibatch steps on the client's own data, then the loss, then the weight; and so at evaluation."""
    config = CONFIG.model_copy(update={"tuning_steps": steps, "batch_size": 8, "momentum": 0.9, "weight_decay": 0.1})
    data = TASK.load(1)
    w = parameters(INITIAL)
    x, y = data.train.x.flatten(1).double(), data.train.y
    for batch in np.asarray(Minibatches(0, "client-0001", 0, len(y), steps, 8, "tuning")):
        gradients = torch.autograd.grad(cross_entropy(linear(x[batch], *w), y[batch]), w)
        w = [(p - 0.3 * g).detach().requires_grad_() for p, g in zip(w, gradients, strict=True)]
    tuned = loss_of(w, 1).item()
    assert tuned < loss_of(parameters(INITIAL), 1).item() - 0.1 * steps

    one = volunteer(1, config)
    strategy = MaxFL(tuning_steps=steps, mandatory_rounds=1)
    grid = MemoryGrid({10: one})
    (message,) = strategy.configure_train(1, LAYOUT.pack(INITIAL), ConfigRecord(), grid)
    reply = one(message)
    assert reply is not None
    told = reply.content.metric_records[keys.METRICS]
    assert told[APPEAL_WEIGHT] == pytest.approx(appeal_weight(tuned, RHO[1]), rel=1e-5)
    # What is sent is trained from the model that came, not from the tuned one.
    plain = volunteer(1, config.model_copy(update={"tuning_steps": 0}))
    (message,) = MaxFL(mandatory_rounds=1).configure_train(1, LAYOUT.pack(INITIAL), ConfigRecord(), grid)
    same = plain(message)
    assert same is not None
    assert same.content[keys.ARRAYS] == reply.content[keys.ARRAYS]

    for config_record, expected in ((ConfigRecord(), data.test), (ConfigRecord({keys.SPLIT: "train"}), data.train)):
        (message,) = strategy.configure_evaluate(1, LAYOUT.pack(INITIAL), config_record, grid)
        reply = one(message)
        assert reply is not None
        told = reply.content.metric_records[keys.METRICS]
        logits = linear(expected.x.flatten(1).double(), *w)
        assert told[keys.LOSS] == pytest.approx(cross_entropy(logits, expected.y).item(), rel=1e-5)
        assert told["accuracy"] == pytest.approx((logits.argmax(1) == expected.y).double().mean().item())


@pytest.mark.parametrize(("steps", "decision"), [(0, 0), (5, 1)])
def test_the_decision_is_about_the_model_as_the_client_would_use_it(steps: int, decision: int) -> None:
    """After the mandatory rounds: the model as sent does not appeal, the tuned one does."""
    one = volunteer(1, CONFIG.model_copy(update={"batch_size": 8}), **{"fixed-requirement": 1.5})
    strategy = MaxFL(tuning_steps=steps, mandatory_rounds=0)
    (message,) = strategy.configure_train(1, LAYOUT.pack(INITIAL), ConfigRecord(), MemoryGrid({10: one}))
    reply = one(message)
    assert reply is not None
    assert reply.content.metric_records[keys.METRICS][keys.DECISION] == decision
