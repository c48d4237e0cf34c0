"""Promise: a clock that jumps by an hour, either way, costs nothing: on a client, on the server."""

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from client.app import Clients
from client.fleet.activation import Identity, clock_measured, describe
from client.process.serve import Event, _Client
from client.process.shutdown import GracefulShutdown
from client.roster import Participants
from client.settings import Connection, NodeSettings
from client.training.task_learner import TaskLearners
from fedappeal.flower.node.fleet import WrongClock
from fedappeal.system.clock import CLOCK, SteadyClock
from strategies import FedAvg
from tests.grid import MemoryGrid, Volunteer, Watch, run
from tests.hostile.federation import Federation, federation

pytestmark = pytest.mark.timeout(900)

HOUR = 3600.0


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.ahead, self.counted = 0.0, 100.0

    def time(self) -> float:
        return 1e9 + self.counted + self.ahead

    def count(self) -> float:
        return self.counted


def test_the_steady_clock_counts_on_and_reads_again_when_it_is_told_to() -> None:
    machine = Machine()
    clock = SteadyClock(machine.time, machine.count)
    assert clock.now() == 1e9 + 100
    for ahead in (HOUR, -HOUR):
        machine.ahead = ahead
        machine.counted += 5
        assert clock.now() == 1e9 + machine.counted
    clock.read_again()
    assert clock.now() == 1e9 + machine.counted - HOUR


def test_a_time_that_is_refused_is_read_again_and_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fleet:
        address = "here:1"

        def pass_when_signed(self, shifts: Any) -> list[bool]:
            off = CLOCK.now() - 1e9 - machine.counted  # the SuperLink's clock is right
            return [-305 <= off + shift <= 5 for shift in shifts]

    machine = Machine()
    monkeypatch.setattr(CLOCK, "_machine", machine.time)
    monkeypatch.setattr(CLOCK, "_counted", machine.count)
    machine.ahead = HOUR
    CLOCK.read_again()
    machine.ahead = 0  # set right meanwhile: the next call passes
    with pytest.raises(WrongClock, match="was set: they agree again"), clock_measured(Fleet()):  # type: ignore[arg-type]
        raise WrongClock("refused")
    assert CLOCK.now() == machine.time()
    machine.ahead = -HOUR
    CLOCK.read_again()
    with pytest.raises(WrongClock, match=r"3600 s \(1\.0 hours\) behind .* set it"), clock_measured(Fleet()):  # type: ignore[arg-type]
        raise WrongClock("refused")
    assert "15 hours away" in describe(None, "here:1")


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_rounds_of_a_server_whose_clock_jumps_are_counted_by_a_clock_that_does_not(
    jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, jumped = time.time, list[float]()
    monkeypatch.setattr(time, "time", lambda: real() + sum(jumped))
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}") for k in range(3)})
    _, watch = run(FedAvg(), grid, 4, Watch({n: lambda: jumped.append(jump) for n in (2, 3)}))
    assert [record.count("joined") for record in watch.records] == [3] * 4
    assert all(0 <= record.seconds < 60 for record in watch.records)


@pytest.mark.e2e
def test_a_client_whose_clock_jumps_joins_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = [0.0]
    # Not `time.time` for all: gRPC's Python part counts from it to deadlines that its C part reads off the system.
    monkeypatch.setattr(CLOCK, "_machine", lambda: time.time() + ahead[0])
    moved = lambda: datetime.now(UTC) + timedelta(seconds=ahead[0])  # noqa: E731
    monkeypatch.setattr("flwr.app.message.message.now", moved)
    with federation(tmp_path, rounds=8, round_timeout=20.0, min_clients=3) as attacked:
        told, shutdown = list[Event](), GracefulShutdown()
        thread = threading.Thread(target=_in_this_process(attacked, tmp_path / "mine", told, shutdown).serve)
        thread.start()
        try:
            attacked.submit()
            until = time.monotonic() + 240
            for rounds, jump in ((2, HOUR), (5, -HOUR)):
                while len(attacked.history) < rounds:
                    assert time.monotonic() < until, attacked.log
                    time.sleep(0.01)
                ahead[0] = jump
            attacked.follow()
        finally:
            shutdown.asked.set()
            thread.join(20)
    assert [line["joined"] for line in attacked.history] == [3] * 8
    assert [line["evaluated"] for line in attacked.history] == [3] * 8
    assert {event.kind for event in told} == {"connected", "answered", "ended"}


def _in_this_process(attacked: Federation, state: Path, told: list[Event], shutdown: GracefulShutdown) -> _Client:
    """The third client, beside two in processes of their own."""
    connection = Connection(superlink=attacked.superlink.fleet_address, insecure=True)
    node = NodeSettings(partition_id=2, num_partitions=3, state_dir=str(state), device="cpu", allow="")
    app = Clients(Participants(TaskLearners()))
    return _Client(node, connection, app, Identity.of(connection), 30.0, told.append, shutdown)
