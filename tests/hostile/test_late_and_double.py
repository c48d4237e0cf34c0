"""Promise: an answer counts once, in the round that asked for it: not late, not twice, and one of two that race."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from safetensors.numpy import load_file

from fedappeal.flower.node.fleet import MessageDropped, NotConnected
from fedappeal.flower.node.objects import Parcel
from fedappeal.protocol import keys
from fedappeal.record.lines import INITIAL, MODEL
from fedappeal.record.reader import Record
from tests.hostile.federation import Attacker, enrolled, federation, is_roll_call, is_train, sat_out

ROUNDS = 8  # where a late answer comes after a short round is over, it counts as late one round later
TIMEOUT = 6.0
ONE, OTHER, LATE = 1.0, 100.0, 10_000.0
"""What an answer adds to each parameter."""
HUGE = 1_000_000
"""Examples that an attacker claims: the honest client, which hardly trains, weighs nothing beside it."""


def joined(message: Message, more: float) -> Message:
    arrays = {name: Array(array.numpy() + np.float32(more)) for name, array in message.content[keys.ARRAYS].items()}
    metrics = MetricRecord({keys.NUM_EXAMPLES: HUGE, keys.DECISION: 1})
    return Message(RecordDict({keys.ARRAYS: ArrayRecord(arrays), keys.METRICS: metrics}), reply_to=message)


class Sender:
    """Answers as its name says: to a TRAIN with some answers, which are sent side by side."""

    def __init__(self, name: str) -> None:
        self.name, self.earlier = name, list[Message]()

    def __call__(self, attacker: Attacker, message: Message) -> Message | None:
        if is_roll_call(message):
            return enrolled(message, self.name)
        if not is_train(message):
            return sat_out(message)

        def send(answer: Message) -> None:
            with suppress(MessageDropped, NotConnected):
                attacker.connection.reply(Parcel.of(answer), 0.0)

        with ThreadPoolExecutor() as threads:
            list(threads.map(send, self.answers(message)))
        return None

    def answers(self, message: Message) -> list[Message]:
        if self.name == "same-twice":
            return [joined(message, ONE)] * 2
        if self.name == "two-that-race":
            return [joined(message, ONE), joined(message, OTHER)]
        earlier, self.earlier = self.earlier, [*self.earlier, joined(message, LATE)]
        if self.name == "a-round-late":  # it answers each round once the next one asks
            return earlier[-1:]
        return [joined(message, ONE), *earlier]  # and all earlier rounds again


NAMES = ("same-twice", "two-that-race", "a-round-late", "all-again")


@pytest.mark.timeout(300)
def test_each_client_counts_once_a_round(tmp_path: Path) -> None:
    settings = {"round_timeout": TIMEOUT, "evaluate_every": 0, "participation": "always", "learning_rate": 1e-30}
    with federation(tmp_path, attackers=len(NAMES), clients=1 + len(NAMES), rounds=ROUNDS, **settings) as attacked:
        for name in NAMES:
            attacked.attack(Sender(name))
        attacked.run()
    late = [name == "a-round-late" for name in NAMES]
    assert [(line["joined"], line["absent"]) for line in attacked.history] == [(len(NAMES), sum(late))] * ROUNDS
    decisions = [(line["round"], line["client-id"]) for line in Record(attacked.path).decisions]
    assert len(decisions) == len(set(decisions)) == ROUNDS * (1 + len(NAMES))
    assert any("slow alone: not waited for after" in reason for reason in attacked.failures_of("a-round-late"))
    first, last = (load_file(attacked.path / name) for name in (INITIAL, MODEL))
    moved = [float(value) for name in first for value in np.ravel(last[name] - first[name])]
    sums = {(2 * ROUNDS * ONE + sum(raced)) / 3 for raced in combinations_with_replacement((ONE, OTHER), ROUNDS)}
    assert any(moved == pytest.approx([total] * len(moved), rel=1e-3) for total in sums), set(moved)
