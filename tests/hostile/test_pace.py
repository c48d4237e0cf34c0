"""Promise: a client that answers just before every deadline holds up two rounds, not each one for ever."""

import threading
import time
from functools import partial
from pathlib import Path

from flwr.app import Message

from fedappeal.flower.node.objects import Parcel
from tests.hostile.federation import Attacker, enrolled, federation, is_roll_call, is_train, sat_out

TIMEOUT = 11.0
BEFORE_THE_DEADLINE = 3.0
"""Seconds; a busy machine takes one of them to send the answer."""


def slow(timers: list[threading.Timer], attacker: Attacker, message: Message) -> Message | None:
    if is_roll_call(message):
        return enrolled(message)
    answer = sat_out(message)
    if not is_train(message):
        return answer
    wait = message.metadata.created_at + message.metadata.ttl - BEFORE_THE_DEADLINE - time.time()
    timers.append(threading.Timer(max(0.0, wait), attacker.connection.reply, (Parcel.of(answer), 0.0)))
    timers[-1].start()
    return None


def test_one_that_is_slow_alone_is_soon_waited_for_less(tmp_path: Path) -> None:
    with federation(tmp_path, clients=4, rounds=5, round_timeout=TIMEOUT, evaluate_every=0) as attacked:
        timers: list[threading.Timer] = []
        attacked.attack(partial(slow, timers))
        attacked.run()
        for timer in timers:  # before the connection is closed
            timer.cancel()
            timer.join()
    seconds = [line["seconds"] for line in attacked.history]
    assert [line["joined"] for line in attacked.history] == [3] * 5
    assert seconds[0] > TIMEOUT - BEFORE_THE_DEADLINE - 1, "the attack works"
    assert min(seconds[2:4]) < TIMEOUT - BEFORE_THE_DEADLINE - 1, seconds
    assert any("slow alone: not waited for after" in line for line in attacked.failures_of("mallory")), seconds
