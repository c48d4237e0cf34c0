"""Promise: whatever one client sends, or does not send, concerns that client alone, and is named."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import psutil
import pytest
from flwr.app import Message

from strategies.rounds.exchange.exchange import NO_ANSWER
from tests.hostile.federation import Attacker, Federation, enrolled, federation, is_roll_call, is_train, sat_out
from tests.hostile.forged import Forged, announce, forged, model, npy, reply

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # attackers go on

HONEST = 3
TIMEOUT = 8.0
ROUNDS = 4
MARGIN = 6.0
"""Seconds after its deadline in which a round is to end, 2, times three for a busy machine."""
MIB = 1 << 20

Attack = Callable[[Attacker, Message], Message | None]


def sends(make: Callable[[], Forged], count: int | None = None, every: float = 0.0, rounds: int = ROUNDS) -> Attack:
    """Send a forgery to each TRAIN of the first rounds; ``count`` and ``every``: as in `Upload.push`."""
    forgery = cache(make)

    def attack(attacker: Attacker, message: Message) -> Message | None:
        if int(message.metadata.group_id) > rounds:
            return sat_out(message)
        proto, root = reply(message, forgery())
        push = lambda: announce(attacker.fleet, attacker.node_id, proto, root).push(count, every)  # noqa: E731
        threading.Thread(target=push, daemon=True).start()
        return None

    return attack


def other_root(attacker: Attacker, message: Message) -> None:
    proto, _ = reply(message)
    announce(attacker.fleet, attacker.node_id, proto, model(npy(4))).push()


def chain(depth: int) -> Forged:
    link = forged("ArrayChunk", b"end")
    for _ in range(depth - 2):
        link = forged("RecordDict", b"{}", link)
    return link


def chunks(count: int, mib: int) -> list[bytes]:
    return [bytes([k]) * mib * MIB for k in range(count)]


# What the history says; of what the SuperLink does not take, that there was no answer.
ATTACKS: dict[str, tuple[Attack, tuple[str, ...]]] = {
    "garbage": (sends(lambda: forged("RecordDict", b'{"arrays": "\xff\xfe')), ("its reply cannot be read",)),
    "other-root": (other_root, ("its reply cannot be read",)),
    "chain": (sends(lambda: chain(62)), ("nested more than 5 deep", NO_ANSWER)),
    "silent-objects": (sends(lambda: model(npy(4)), count=0), (NO_ANSWER,)),
    "trickle": (sends(lambda: model(*(bytes([k]) * 64 for k in range(60))), every=1.0), (NO_ANSWER,)),
    "huge": (sends(lambda: model(*chunks(8, 20), shape=(150_000_000,)), rounds=1), ("is too large", NO_ANSWER)),
}


def attacking(name: str, attacker: Attacker, message: Message) -> Message | None:
    if is_roll_call(message):
        return enrolled(message, client_id=name)
    if is_train(message):
        return ATTACKS[name][0](attacker, message)
    return sat_out(message)


@dataclass
class Memory(threading.Thread):
    """The most memory, in bytes, that the ServerApp took up so far; it looks ten times a second."""

    superlink: int
    peak: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self.over.wait(0.1):
            try:
                family = psutil.Process(self.superlink).children(recursive=True)
                sizes = [p.memory_info().rss for p in family if "serverapp" in " ".join(p.cmdline())]
            except psutil.Error:  # one has ended meanwhile
                continue
            self.peak = max([self.peak, *sizes])


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Memory]]:
    """A run of three honest clients and one of each kind of attacker, after its end."""
    settings = {"clients": HONEST + len(ATTACKS), "rounds": ROUNDS, "round_timeout": TIMEOUT, "evaluate_every": 0}
    folder = tmp_path_factory.mktemp("replies")
    with federation(folder, attackers=len(ATTACKS), start_timeout=60.0, **settings) as made:
        for name in ATTACKS:
            made.attack(partial(attacking, name))
        memory = Memory(made.superlink.pid)
        memory.start()
        try:
            made.run(seconds=ROUNDS * 2 * (TIMEOUT + MARGIN))
        finally:
            memory.over.set()
        yield made, memory


Attacked = tuple[Federation, Memory]


def test_all_rounds_finish_with_all_honest_clients(attacked: Attacked) -> None:
    assert [line["joined"] for line in attacked[0].history] == [HONEST] * ROUNDS


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attacker_has_failed_and_the_history_says_why(attacked: Attacked, name: str) -> None:
    said = attacked[0].failures_of(name)
    assert any(reason in line for line in said for reason in ATTACKS[name][1]), said
    assert all(len(line) <= 600 and line.isprintable() for line in said)


def test_a_round_ends_by_its_deadline(attacked: Attacked) -> None:
    seconds = [line["seconds"] for line in attacked[0].history]
    assert max(seconds[:-1]) < TIMEOUT + MARGIN
    assert seconds[-1] < 2 * (TIMEOUT + MARGIN), "the last one has an evaluation, with a deadline of its own"


def test_an_array_of_600_megabytes_is_refused_before_it_is_pulled(attacked: Attacked) -> None:
    assert 0 < attacked[1].peak < 300 * MIB
