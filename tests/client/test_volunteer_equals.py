"""A wrapped app that trains as our own client does decides as it does: the same rounds, and the same model."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from client.app import Clients, app_of
from client.roster import Participants
from client.training.task_learner import TaskLearners
from fedappeal.clientapp import volunteer
from fedappeal.protocol.packing import array_record
from fedappeal.strategies import FedAvg, MaxFL
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import Split, with_held_out
from tests.client.test_volunteer import Records
from tests.grid import MemoryGrid, time_of
from tests.node import changed, run_config

CLIENTS, STEPS, RATE = 5, 2, 0.5
# All examples are in each batch: the draws of two programs do not matter.
CONFIG = run_config(
    **{"task": "digits", "model": "logistic", "clients": CLIENTS, "local_steps": STEPS, "learning_rate": RATE},
    **{
        "batch_size": 4096,
        "solo__steps": 8 * STEPS,
        "solo__learning_rate": RATE,
        "adaptation_steps": 0,
        "goodwill": 7,
    },
)
TASK = load_task(CONFIG.task_settings())
MODEL = TASK.initial_model(CONFIG.seed)


def split_of(client: int, name: str) -> Split:
    data = with_held_out(TASK.load(client))
    assert data.held_out is not None
    assert data.halves is not None
    splits = {"train": data.train, "held-out": data.held_out, "test": data.test}
    return (splits | dict(zip(("held-out-1", "held-out-2"), data.halves, strict=True)))[name]


def torch_app(splits: bool = False) -> ClientApp:
    app = ClientApp()

    def net_and_data(message: Message, context: Context) -> tuple[nn.Module, Any]:
        net = TASK.initial_model(CONFIG.seed)
        sent = message.content["arrays"]
        assert isinstance(sent, ArrayRecord)
        net.load_state_dict(sent.to_torch_state_dict())
        client, config = int(context.node_config["partition-id"]), message.content["config"]
        assert isinstance(config, ConfigRecord)
        return net, split_of(client, str(config.get("split", "train"))) if splits else TASK.load(client).train

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net, data = net_and_data(message, context)
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(data.x), data.y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(data)})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    @torch.no_grad()
    def evaluate(message: Message, context: Context) -> Message:
        net, data = net_and_data(message, context)
        logits = net(data.x)
        accuracy = (logits.argmax(1) == data.y).double().mean().item()
        told = {"eval_loss": nn.functional.cross_entropy(logits, data.y).item(), "eval_acc": accuracy}
        return Message(RecordDict({"metrics": MetricRecord({**told, "num-examples": len(data)})}), reply_to=message)

    return app


def numpy_softmax_app() -> ClientApp:
    """The same by hand, in float64."""
    app = ClientApp()

    def read(message: Message, context: Context) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        sent = message.content["arrays"]
        assert isinstance(sent, ArrayRecord)
        weight, bias = (array.numpy().astype(float) for array in sorted(sent.values(), key=lambda a: -len(a.shape)))
        data = TASK.load(int(context.node_config["partition-id"])).train
        x, y = data.x.flatten(1).numpy().astype(float), data.y.numpy()
        names = sorted(sent, key=lambda name: -len(sent[name].shape))
        return names, weight, bias, x, np.eye(len(bias))[y]

    def shares(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
        logits = x @ weight.T + bias
        e = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(e / e.sum(1, keepdims=True))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        names, weight, bias, x, y = read(message, context)
        for _ in range(STEPS):
            error = (shares(weight, bias, x) - y) / len(x)
            weight, bias = weight - RATE * error.T @ x, bias - RATE * error.sum(0)
        of_name = dict(zip(names, (weight.astype(np.float32), bias.astype(np.float32)), strict=True))
        arrays = ArrayRecord({name: Array(of_name[name]) for name in message.content["arrays"]})
        metrics = MetricRecord({"num-examples": len(x)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, weight, bias, x, y = read(message, context)
        loss = float(-np.log((shares(weight, bias, x) * y).sum(1)).mean())
        return Message(
            RecordDict({"metrics": MetricRecord({"loss": loss, "num-examples": len(x)})}), reply_to=message
        )

    return app


def played(strategy: Any, app: ClientApp, run: dict[str, Any]) -> tuple[list[dict[str, str]], dict[str, np.ndarray]]:
    """Decisions by round, and the last model."""
    nodes = {}
    for k in range(CLIENTS):
        config = {"partition-id": k, "num-partitions": CLIENTS}
        context = Context(7, 10 + k, config, RecordDict(), run)
        nodes[10 + k] = lambda message, context=context: app(message, context)
    grid, watch = MemoryGrid(nodes), Records()
    initial = array_record({name: value.numpy() for name, value in MODEL.state_dict().items()})
    with time_of(grid):
        told = ConfigRecord({"learning-rate": RATE, "local-steps": STEPS, "batch-size": 4096})
        result = strategy.start(grid, initial, 12, hooks=watch, train_config=told)
    return [r.decisions for r in watch.records], {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("app", [torch_app, numpy_softmax_app])
@pytest.mark.parametrize("kind", [MaxFL, FedAvg])
def test_decisions_and_model_are_our_own_clients(app: Any, kind: Any) -> None:
    def strategy() -> Any:
        return kind(min_clients=CLIENTS, mandatory_rounds=6, on_empty_round="keep")

    wrapped = volunteer(app(), solo__steps=8, goodwill=7)
    decisions, model = played(strategy(), wrapped, {})
    own = app_of(Clients(Participants(TaskLearners())))
    expected, reference = played(strategy(), own, changed(CONFIG, strategy=kind.name).as_config())
    assert decisions == expected
    assert {"joined", "sat-out"} <= {what for line in decisions for what in line.values()}
    for name, values in reference.items():
        np.testing.assert_allclose(model[name], values, rtol=0, atol=1e-6)


BEST = {
    "judge_on": "cross-fitted",
    "use": "best",
    "adaptation_steps": STEPS,
    "requirement": "fixed",
    "fixed__loss": 0.45,
}


@pytest.mark.parametrize("kind", [MaxFL, FedAvg])
def test_an_app_that_measures_halves_uses_the_best_as_our_own_client(kind: Any) -> None:
    def strategy() -> Any:
        return kind(min_clients=CLIENTS, mandatory_rounds=3, on_empty_round="keep")

    wrapped = volunteer(torch_app(splits=True), splits=True, halves=True, goodwill=7, local_steps=STEPS, **BEST)
    decisions, model = played(strategy(), wrapped, {})
    own = app_of(Clients(Participants(TaskLearners())))
    expected, reference = played(strategy(), own, changed(CONFIG, strategy=kind.name, **BEST).as_config())
    assert decisions == expected
    assert {"joined", "sat-out"} <= {what for line in decisions for what in line.values()}
    for name, values in reference.items():
        np.testing.assert_allclose(model[name], values, rtol=0, atol=1e-5)


def test_an_app_that_measures_no_halves_is_refused_in_one_line() -> None:
    wrapped = volunteer(torch_app(splits=True), splits=True, goodwill=7, **BEST)
    with pytest.raises(Exception, match=r"use = 'best' is not allowed for this client: .* no 'halves'"):
        played(FedAvg(min_clients=CLIENTS, mandatory_rounds=3), wrapped, {})


def test_an_app_that_measures_no_halves_looks_once() -> None:
    def weights(judge_on: str, **offers: bool) -> list[float]:
        wrapped = volunteer(torch_app(splits=True), splits=True, goodwill=7, judge_on=judge_on, **offers)
        model = played(MaxFL(min_clients=CLIENTS, mandatory_rounds=3, on_empty_round="keep"), wrapped, {})[1]
        return [value for array in model.values() for value in array.flatten().tolist()]

    assert weights("cross-fitted") == weights("held-out")
    assert weights("cross-fitted", halves=True) != weights("held-out"), "MaxFL's weights follow from rho_k"
