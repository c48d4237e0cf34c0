"""Clients written for Flower's own FedAvg: they know no roll call, no decision and no packed model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from tests.grid import Handler

Layers = Mapping[str, NDArray[np.generic]]


def record(layers: Layers) -> ArrayRecord:
    """A model as named arrays."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in layers.items()})


def trained(message: Message, layers: Layers, examples: float) -> Message:
    """A reply to TRAIN with ``arrays`` and ``num-examples`` only."""
    content = {"arrays": record(layers), "metrics": MetricRecord({"num-examples": examples})}
    return Message(RecordDict(content), reply_to=message)


@dataclass
class Foreign:
    """A ClientApp of Flower's that adds a number to every array, and answers EVALUATE; it has no ``@app.query()``.

    Attributes:
        step: what it adds.
        examples: num-examples.
        got: the kind of each message.
    """

    step: float
    examples: int
    got: list[str] = field(default_factory=list)

    def handler(self, node: int) -> Handler:
        """The client as a node."""
        app, context = ClientApp(), Context(7, node, {}, RecordDict(), {})

        @app.train()
        def train(message: Message, context: Context) -> Message:
            sent = message.content.array_records["arrays"]
            layers = {name: (a.numpy() + self.step).astype(a.dtype) for name, a in sent.items()}
            return trained(message, layers, self.examples)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            metrics = MetricRecord({"num-examples": self.examples, "accuracy": 0.5})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        def answer(message: Message) -> Message:
            self.got.append(message.metadata.message_type)
            return app(message, context)

        return answer
