"""Rational agents as nodes of a `MemoryGrid`: they answer with loss and gradient, and leave once they are content."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedappeal.protocol import keys

Values = NDArray[np.float64]


def reply(message: Message, arrays: ArrayRecord | None = None, **metrics: float) -> Message:
    """A reply to TRAIN with these numbers besides one example."""
    told = {keys.NUM_EXAMPLES: 1.0} | {k.replace("_", "-"): v for k, v in metrics.items()}
    content = RecordDict({keys.METRICS: MetricRecord(told)})  # type: ignore[arg-type]
    if arrays is not None:
        content[keys.ARRAYS] = arrays
    return Message(content, reply_to=message)


@dataclass
class Agent:
    """One agent with its F_m and gradient.

    Attributes:
        name: its client-id.
        loss: F_m(w).
        gradient: its gradient, shape of w.
        precision: it leaves for good once its loss is at most that.
        silent: whether it does not answer TRAIN now.
        seen: the losses of the models that it was sent.
        left: whether it has left.
    """

    name: str
    loss: Callable[[Values], float]
    gradient: Callable[[Values], Values]
    precision: float = -math.inf
    silent: bool = False
    seen: list[float] = field(default_factory=list)
    left: bool = False

    def __call__(self, message: Message) -> Message | None:
        kind = message.metadata.message_type
        if kind == "query":
            answer = reply(message)
            answer.content[keys.INFO] = ConfigRecord({keys.CLIENT_ID: self.name, keys.ROLE: keys.SEEN})
            return answer
        if kind == "evaluate":
            return reply(message)
        if self.silent:
            return None
        record = message.content.array_records[keys.ARRAYS]
        w = record["w"].numpy()
        loss = self.loss(w.astype(np.float64))
        self.seen.append(loss)
        self.left = self.left or loss <= self.precision
        if self.left:
            return reply(message, decision=-1)
        gradient = self.gradient(w.astype(np.float64)).astype(w.dtype)
        return reply(message, ArrayRecord({"w": Array(gradient)}), decision=1, loss=loss)


def constant(name: str, loss: float, *gradient: float) -> Agent:
    """An agent that answers the same to every model."""
    return Agent(name, lambda w: loss, lambda w: np.array(gradient))
