"""The soak's own parts: the replay comes to the simulated run's model, and a line can be cut and mended."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fedappeal.record.lines import MODEL, PARTICIPATION
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks import load_task
from fedappeal.tasks.share import initial_arrays
from tests.soak.faults import drawn
from tests.soak.lines import Lines
from tests.soak.replay import joined_by_round, replay
from tests.soak.soak import SETTINGS, TOLERANCE, check_rounds, clients_of


def test_the_replay_comes_to_the_model_of_the_joiners_and_to_another_one_without_one_of_them(tmp_path: Path) -> None:
    config = RunConfig.parse_recorded({**SETTINGS, "clients": 6, "rounds": 10, "clients-per-round": 3})
    run = RunPlan.of(config, tmp_path / "run").folder({})
    simulate(config, run, Simulation("sequential"))
    assert check_rounds(run.path, config) == []
    joined = joined_by_round(Record(run.path).decisions)
    assert sum(map(len, joined.values())) == 30
    initial = initial_arrays(load_task(config.task_settings()), config.seed, "")
    found = read_safetensors(run.path / MODEL)[0]

    def off(joined: dict[int, list[str]]) -> float:
        expected = replay(config, initial, joined, clients_of(6))
        return max(float(np.abs(found[name] - expected[name]).max()) for name in ("output.weight", "output.bias"))

    assert off(joined) < TOLERANCE
    assert off({**joined, 10: joined[10][:-1]}) > 100 * TOLERANCE


def test_a_round_that_is_missing_or_has_another_joiner_is_found(tmp_path: Path) -> None:
    config = RunConfig.parse_recorded({**SETTINGS, "clients": 6, "rounds": 3, "clients-per-round": 2})
    run = RunPlan.of(config, tmp_path / "run").folder({})
    simulate(config, run, Simulation("sequential"))
    history, participation = run.path / "history.jsonl", run.path / PARTICIPATION
    lines, decisions = history.read_text().splitlines(True), participation.read_text().splitlines(True)
    history.write_text("".join([lines[0], lines[2]]))
    assert check_rounds(run.path, config)
    history.write_text("".join([lines[0], lines[1], lines[1], lines[2]]))
    assert check_rounds(run.path, config)
    history.write_text("".join(lines))
    assert check_rounds(run.path, config) == []
    participation.write_text("".join(decisions[1:]))
    assert check_rounds(run.path, config)


def test_faults_are_the_same_for_the_same_seed() -> None:
    assert list(islice(drawn(3, 30), 50)) == list(islice(drawn(3, 30), 50))
    assert list(islice(drawn(3, 30), 50)) != list(islice(drawn(4, 30), 50))
    assert {fault.kind for fault in islice(drawn(3, 30), 50)} == {"kill", "stop", "cut"}


@pytest.fixture
def echo() -> Iterator[str]:
    """Address of a server that sends back what it gets."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                while got := self.request.recv(100):
                    self.request.sendall(got)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def answers(connection: socket.socket) -> bool:
    """Whether a connection still leads to the server."""
    try:
        connection.sendall(b"here")
        return connection.recv(100) == b"here"
    except ConnectionError:
        return False


def test_one_line_is_cut_and_mended_while_another_stays(echo: str) -> None:
    lines = Lines(2)
    lines.upstream = echo

    def connect(line: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", lines.ports[line]), 10)

    try:
        with connect(0) as first, connect(1) as second:
            assert answers(first)
            assert answers(second)
            lines.cut(0)
            assert first.recv(100) == b""
            with connect(0) as again:
                assert not answers(again)
            assert answers(second)
            lines.mend(0)
            with connect(0) as mended:
                assert answers(mended)
    finally:
        lines.close()
