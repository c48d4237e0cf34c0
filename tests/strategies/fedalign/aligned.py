"""Clients of FedALIGN's tests: one-dimensional, with losses and local models that are easy to work out by hand."""

from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedappeal.protocol import keys
from fedappeal.settings.config import Scalar
from strategies import RoundRecord
from strategies.fedalign import alignment, strategy

MATCH_ON, GLOBAL_LOSS, EPSILON, PRIORITY = (
    f"fedalign.{key}" for key in (alignment.MATCH_ON, alignment.GLOBAL_LOSS, alignment.EPSILON, strategy.PRIORITY)
)
"""What TRAIN tells a client, by the keys of its config."""


@dataclass
class Client:
    """Has the loss ``|w - centre|`` (and the accuracy ``1 - loss``, at least 0), and trains to ``w = centre``.

    Attributes:
        name: its client-id; as a bare node, its node id.
        centre: where its loss is 0.
        priority: whether it asks for priority.
        examples: D_k.
        obeys: whether it sits out where Algorithm 1 says so; else it always joins.
        answers: the kinds of messages that it answers.
        got: every message.
    """

    name: str
    centre: float
    priority: bool = False
    examples: int = 1
    obeys: bool = True
    answers: tuple[str, ...] = ("query", "train", "evaluate")
    got: list[Message] = field(default_factory=list)

    def __call__(self, message: Message) -> Message | None:
        self.got.append(message)
        kind = message.metadata.message_type
        if kind not in self.answers:
            return None
        loss = abs(float(message.content.array_records[keys.ARRAYS]["w"].numpy()[0]) - self.centre)
        if kind == "query":
            info = {keys.CLIENT_ID: self.name, keys.ROLE: keys.SEEN, keys.PRIORITY: int(self.priority)}
            return self._reply(message, {}, {keys.INFO: ConfigRecord(info)})
        if kind == "evaluate":
            return self._reply(message, {keys.LOSS: loss, "accuracy": max(0.0, 1 - loss)}, {})
        told = message.content.config_records[keys.CONFIG]
        priority = bool(told.get(PRIORITY, self.priority))
        measure = 1 - max(0.0, 1 - loss) if told[MATCH_ON] == "error" else loss
        if self.obeys and not priority and GLOBAL_LOSS in told:
            most = told[GLOBAL_LOSS] + told[EPSILON]  # type: ignore[operator]
            if not measure <= most:
                return self._reply(message, {keys.DECISION: 0}, {})
        trained = ArrayRecord({"w": Array(np.array([self.centre], np.float32))})
        metrics = {keys.DECISION: 1, keys.LOSS: measure, keys.PRIORITY: int(priority)}
        return self._reply(message, metrics, {keys.ARRAYS: trained})

    def _reply(
        self, message: Message, metrics: dict[str, float], records: dict[str, ArrayRecord | ConfigRecord]
    ) -> Message:
        content = RecordDict({keys.METRICS: MetricRecord({keys.NUM_EXAMPLES: self.examples, **metrics}), **records})
        return Message(content, reply_to=message)

    def told(self, kind: str, server_round: int) -> dict[str, Scalar]:
        """The config of the one message of a kind that it got in a round."""
        (config,) = [
            message.content.config_records[keys.CONFIG]
            for message in self.got
            if (message.metadata.message_type, message.metadata.group_id) == (kind, str(server_round))
        ]
        return dict(config)  # type: ignore[arg-type]


def numbers(record: RoundRecord, *names: str) -> tuple[float | None, ...]:
    """Numbers of a round's history, None where there is none."""
    return tuple(record.metrics.get(name) for name in names)


def counts(record: RoundRecord) -> tuple[float | None, ...]:
    """``(priority_joined, accepted, silent, refused)`` of a round."""
    return numbers(record, "priority_joined", "accepted", "silent", "refused")
