"""A volunteer outside of the containers joins their federation by one line, takes part, and leaves."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docker.federation import ROOT, Federation, wait_until
from tests.federation.conftest import ENVIRONMENT, Client
from tests.federation.test_joining import data_of
from tests.ports import free_port

FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]


@pytest.fixture
def federation(new_federation: Callable[[], Federation]) -> Iterator[Federation]:
    """One whose ports are known: an invitation holds them."""
    federation = new_federation()
    federation.environment |= {"FLEET_PORT": str(free_port()), "JOIN_PORT": str(free_port())}
    federation.start(2)
    federation.compose("up", "--detach", "--no-build", "--no-deps", "invitations")
    yield federation
    federation.stop()


def test_a_volunteer_outside_joins_takes_part_and_leaves(federation: Federation, tmp_path: Path) -> None:
    said = federation.compose("run", "--rm", "-T", "--no-deps", "federation", "invite", "laptop")
    (line,) = [line for line in said.splitlines() if line.startswith("fedappeal://")]
    assert line.startswith(f"fedappeal://localhost:{federation.environment['JOIN_PORT']}/")
    invitations = federation.container("invitations")
    wait_until(lambda: "invitations are redeemed at" in federation.logs(invitations), "the port is open")
    state = str(tmp_path / "state")
    join = [*FEDAPPEAL, "join", line, "--data", data_of(tmp_path / "photos", 7), "--state-dir", state]
    volunteer = Client([*join, "--device", "cpu"], tmp_path / "log")
    try:
        volunteer.wait_for(f"connected to localhost:{federation.environment['FLEET_PORT']}", 120)
        options = ("--clients", "3", "--rounds", "2", "--task", "digits", "--mandatory-rounds=-1")
        run = federation._one_shot("invited", "--out", "invited", *options)
        run.finished()
        assert [line["joined"] for line in run.history] == [3, 3]
        nodes = federation.compose("run", "--rm", "-T", "--no-deps", "federation", "federation", "list")
        assert "laptop" in nodes
        assert volunteer.end() == 0
        left = subprocess.run(
            [*FEDAPPEAL, "client", "leave", "--federation", "--state-dir", state],
            env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (left.returncode, left.stderr, "is unregistered for good" in left.stdout) == (0, "", True)
    finally:
        volunteer.process.kill()
    nodes = federation.compose("run", "--rm", "-T", "--no-deps", "federation", "federation", "list")
    (row,) = [row for row in nodes.splitlines() if "laptop" in row]
    assert "unregistered" in row
