"""The start of a run: no bad answer to the roll call keeps it from beginning, or takes a good client's place."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedappeal.protocol import keys
from fedappeal.settings.config import Scalar
from server.build import check_settings
from strategies.rounds.exchange.roll_call import RollCallError
from tests.grid import MemoryGrid, Volunteer, Watch, model, run
from tests.node import run_config
from tests.strategies.rounds.test_real_nodes import TOLD, RealGrid, Signing, new_key

HONEST = ("anna", "ben")


def garbage(message: Message) -> Message:
    content = RecordDict({keys.INFO: MetricRecord({keys.CLIENT_ID: 1.0}), keys.METRICS: model(1)})
    return Message(content, reply_to=message)


def unavailable(message: Message) -> Message:
    return Message(Error(3, "not now"), reply_to=message)


def silent(message: Message) -> None:
    return None


BAD: dict[str, Callable[[], Callable[[Message], Message | None]]] = {
    "the id of another client": lambda: Volunteer("anna"),
    "the id of another client, signed with another key": lambda: Signing("anna", new_key()),
    "an id of 3 MB": lambda: Volunteer("x" * 3_000_000),
    "garbage": lambda: garbage,
    "an error": lambda: Volunteer("c", refuses="no"),
    "data that do not fit": lambda: Volunteer("c", data_refused="labels"),
    "unavailable, again and again": lambda: unavailable,
    "no answer": lambda: silent,
}


def begin(grid: MemoryGrid, **settings: Scalar) -> tuple[float, Watch]:
    """Run two rounds; return when the first began, and what happened."""
    began: list[float] = []
    watch = Watch(before={1: lambda: began.append(grid.clock())})
    strategy = check_settings(run_config(strategy="fedavg", **settings)).build()
    run(strategy, grid, 2, watch, roll_call_config=TOLD)
    return began[0], watch


@pytest.mark.parametrize("kind", BAD)
def test_a_run_begins_without_a_client_that_answers_badly(kind: str) -> None:
    grid = RealGrid({10: Signing("anna", new_key()), 11: Signing("ben", new_key()), 12: BAD[kind]()})
    began, watch = begin(grid, clients=3)
    assert began == pytest.approx(30.0, abs=1.0)
    assert [sorted(record.decisions) for record in watch.records] == [list(HONEST)] * 2
    assert {wanted for _, wanted, _, _ in watch.waited} == {3}, "a refused node lowers nothing"


class Later(RealGrid):
    """Further nodes, each from a moment on."""

    def __init__(self, nodes: dict[int, Any], later: dict[int, tuple[float, Any]]) -> None:
        super().__init__(nodes)
        self.later = later

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.nodes |= {node: handler for node, (moment, handler) in self.later.items() if self.clock() >= moment}
        return super().get_nodes()


@pytest.mark.parametrize(
    ("clients", "sixth", "begins"), [(12, "unavailable, again and again", 40.0), (6, "an error", 10.0)]
)
def test_six_honest_clients_all_take_part_that_come_after_six_bad_ones(
    clients: int, sixth: str, begins: float
) -> None:
    kinds = ["garbage", "garbage", "an error", "an id of 3 MB", "data that do not fit", sixth]
    bad = {10 + number: BAD[kind]() for number, kind in enumerate(kinds)}
    honest = {20 + number: (10.0, Signing(f"client-{number}", new_key())) for number in range(6)}
    began, watch = begin(Later(bad, honest), clients=clients, round_timeout=8.0)
    assert began == pytest.approx(begins, abs=1.5)
    assert [sorted(record.decisions) for record in watch.records] == [[f"client-{number}" for number in range(6)]] * 2


def test_each_good_client_prolongs_the_wait_for_the_next() -> None:
    honest = {20 + number: (25.0 * number, Volunteer(f"client-{number}")) for number in range(4)}
    began, watch = begin(Later({10: garbage}, honest), clients=5)
    assert began == pytest.approx(75.0 + 30.0, abs=1.0)
    assert len(watch.records[0].decisions) == 4
    began, watch = begin(Later({10: garbage}, honest), clients=5, start_after=20.0)
    assert (began, list(watch.records[0].decisions)) == (pytest.approx(20.0, abs=1.0), ["client-0"])


def test_all_that_are_there_begin_where_start_timeout_ends_first() -> None:
    grid = RealGrid({10: Volunteer("anna"), 11: garbage})
    assert begin(grid, clients=2, start_timeout=12.0)[0] == pytest.approx(12.0, abs=0.5)


@pytest.mark.parametrize("kind", BAD)
def test_an_operators_own_minimum_stands(kind: str) -> None:
    honest = {10: Signing("anna", new_key()), 11: Signing("ben", new_key())}
    assert begin(RealGrid({**honest, 12: BAD[kind]()}), clients=3, min_clients=2)[0] < 10.0
    grid = RealGrid({**honest, 12: BAD[kind]()})
    with pytest.raises(RollCallError, match=r"^2 of 3 clients answered the roll call within 300 s \(min-clients"):
        begin(grid, clients=3, min_clients=3)
    assert grid.clock() == pytest.approx(300.0, abs=0.5)
