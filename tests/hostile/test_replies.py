"""Promise: whatever one client sends, or does not send, concerns that client alone, and is named."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest
from flwr.app import Message, MetricRecord, RecordDict

from fedappeal.protocol import keys
from tests.hostile.federation import Attacker, Federation, enrolled, federation, is_roll_call, is_train
from tests.hostile.forged import Forged, Upload, announce, forged, model, npy, reply

TIMEOUT = 6.0
ROUNDS = 5
MIB = 1 << 20

OUTCOMES: dict[Attacker, list[Upload]] = {}

Attack = Callable[[Attacker, Message], Message | None]


def measured(message: Message) -> Message:
    told = {keys.NUM_EXAMPLES: 100, keys.LOSS: 1.0, keys.ACCURACY: 0.5, keys.DECISION: 0}
    return Message(RecordDict({keys.METRICS: MetricRecord(told)}), reply_to=message)


def later(attacker: Attacker, answer: Message, seconds: float) -> None:
    threading.Timer(seconds, lambda: attacker.connection.reply(answer, 0.0)).start()


def chain(depth: int) -> Forged:
    link = forged("ArrayChunk", b"end")
    for _ in range(depth - 2):
        link = forged("RecordDict", b"{}", link)
    return link


def sends(forgery: Forged, count: int | None = None, every: float = 0.0) -> Attack:
    def attack(attacker: Attacker, message: Message) -> None:
        proto, root = reply(message, forgery)

        def upload() -> None:
            OUTCOMES.setdefault(attacker, []).append(
                announce(attacker.fleet, attacker.node_id, proto, root).push(count, every)
            )

        threading.Thread(target=upload, daemon=True).start()

    return attack


def other_root(attacker: Attacker, message: Message) -> None:
    proto, _ = reply(message)
    announce(attacker.fleet, attacker.node_id, proto, model(npy(4))).push()


def slow(attacker: Attacker, message: Message) -> None:
    later(attacker, measured(message), TIMEOUT - 0.7)


ATTACKS: dict[str, Attack] = {
    "garbage": sends(forged("RecordDict", b'{"arrays": "\xff\xfe not json')),
    "other-root": other_root,
    "chain": sends(chain(62)),
    "silent-objects": sends(model(npy(4)), count=0),
    "trickle": sends(model(*(bytes([i]) * 64 for i in range(40))), every=1.0),
    "huge": sends(model(*(bytes([i]) * 20 * MIB for i in range(3)), shape=(150_000_000,))),
    "one-huge": sends(model(bytes(40 * MIB), shape=(10_000_000,))),
    "bomb": sends(model(bytes(256 * 1024), shape=(4,), ids=[0] * 4096)),
    "slow": slow,
}


def attacking(name: str, attacker: Attacker, message: Message) -> Message | None:
    if is_roll_call(message):
        return enrolled(message, client_id=name)
    if is_train(message):
        return ATTACKS[name](attacker, message)
    return slow(attacker, message) if name == "slow" else measured(message)


def peak_memory(pid: int, peak: list[int], over: threading.Event) -> None:
    """Note the most memory of each kind of process below the SuperLink, in bytes."""
    while not over.wait(0.1):
        try:
            family = psutil.Process(pid).children(recursive=True)
            sizes = [p.memory_info().rss for p in family if "serverapp" in " ".join(p.cmdline())]
            peak[0] = max([peak[0], *sizes])
            peak[1] = max(peak[1], psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            continue


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, list[int]]]:
    folder, peak, over = tmp_path_factory.mktemp("replies"), [0, 0], threading.Event()
    settings = {"clients": 3 + len(ATTACKS), "rounds": ROUNDS, "round_timeout": TIMEOUT, "evaluate_every": 0}
    with federation(folder, attackers=len(ATTACKS), **settings) as made:
        for name in ATTACKS:
            made.attack(partial(attacking, name)).outcome = []  # type: ignore
        watch = threading.Thread(target=peak_memory, args=(made.superlink.pid, peak, over))
        watch.start()
        try:
            made.run()
        finally:
            over.set()
            watch.join()
            print("peak", [p >> 20 for p in peak], "MiB")
            for line in made.history:
                print(line["round"], line["seconds"], line["joined"], line.get("failures"))
            for name, a in zip(ATTACKS, made.attackers, strict=True):
                print(name, [(u.pushed, u.refused[:2]) for u in OUTCOMES.get(a, ())])  # type: ignore
        yield made, peak


def test_all(attacked) -> None:
    pass
