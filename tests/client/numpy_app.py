"""A ClientApp as people write them for Flower's FedAvg: least squares in NumPy, under names of the quickstart's."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

Points = tuple[NDArray[np.float64], NDArray[np.float64]]
RATE = 0.1


def points(client: int) -> Points:
    """The line 1 + 2x, in other places for each client; clients 5 and up have another line."""
    x = np.array([0.0, 1.0, 2.0]) + 0.1 * client
    y = 1 + 2 * x if client < 5 else 4 - 3 * x
    return np.stack([np.ones(3), x], axis=1), y


def loss(w: NDArray[Any], data: Points) -> float:
    return float(np.mean((data[0] @ w - data[1]) ** 2))


def step(w: NDArray[Any], data: Points) -> NDArray[Any]:
    x, y = data
    return np.asarray(w - RATE * 2 / len(y) * x.T @ (x @ w - y))


def numpy_app(
    data_of: Callable[[int], Points] = points,
    names: Mapping[str, str] | None = None,
    seen: list[tuple[str, dict[str, Any]]] | None = None,
) -> ClientApp:
    """The app; ``names``: other keys of its numbers, ``seen``: is told each call and its configuration."""
    app, key = ClientApp(), {"loss": "eval_loss", "acc": "eval_acc", "n": "num-examples", **(names or {})}
    calls = [] if seen is None else seen

    def read(message: Message, context: Context, kind: str) -> tuple[str, NDArray[Any], NDArray[Any], Points]:
        [(name, arrays)] = message.content.array_records.items()
        [config] = [dict(c) for n, c in message.content.config_records.items()]
        calls.append((kind, config))
        bias, slope = (array.numpy() for array in arrays.values())
        return name, bias, slope, data_of(int(context.node_config["partition-id"]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        name, bias, slope, data = read(message, context, "train")
        w = step(np.array([bias[0], slope[0]]), data)
        counted = context.state.get("count")
        number = 1 + int(str(counted["calls"])) if isinstance(counted, ConfigRecord) else 1
        context.state["count"] = ConfigRecord({"calls": number})
        sent = message.content.array_records[name]
        arrays = ArrayRecord({k: Array(np.array([v])) for k, v in zip(sent, w, strict=True)})
        metrics = MetricRecord({key["n"]: 3, "train_loss": loss(w, data), "calls": number})
        return Message(RecordDict({name: arrays, "numbers": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, bias, slope, data = read(message, context, "evaluate")
        value = loss(np.array([bias[0], slope[0]]), data)
        metrics = MetricRecord({key["n"]: 3, key["loss"]: value, key["acc"]: 1 / (1 + value)})
        return Message(RecordDict({"numbers": metrics}), reply_to=message)

    return app


START = {"z-bias": np.zeros(1), "a-slope": np.zeros(1)}
"""Not in the order of the alphabet: NumPy apps read arrays by their place."""


def initial() -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in START.items()})
