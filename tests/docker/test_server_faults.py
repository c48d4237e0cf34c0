"""The server dies in the midst of a round: the run goes on from the last finished one, and ends as it would have."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from tests.docker.federation import SLOW, Federation, Run, docker, wait_until

ROUNDS = 6
# Half of the clients a round, drawn by the seed; the server carries c, and each client its own control variate.
SAMPLED = ("--strategy", "scaffold", "--rounds", str(ROUNDS), "--clients-per-round", "2", "--seed", "7", *SLOW)

KILL_SERVERAPP = """
import os, signal
from pathlib import Path
for each in Path("/proc").glob("[0-9]*/cmdline"):
    if b"superlink.serverapp" in each.read_bytes() and int(each.parent.name) != os.getpid():
        os.kill(int(each.parent.name), signal.SIGKILL)
        print("killed", each.parent.name)
"""


@pytest.fixture(scope="module")
def undisturbed(long_running: Federation) -> Run:
    run = long_running.run("undisturbed", *SAMPLED)
    run.finished()
    return run


def test_a_killed_serverapp_costs_no_finished_round(
    federation: Federation, undisturbed: Run, recovered: Callable[[str, float], None]
) -> None:
    run = federation.run("serverapp-killed", *SAMPLED)
    run.wait_for_begin(3)
    time.sleep(1.0)  # two clients train now
    assert "killed" in docker("exec", federation.container("superlink"), "python", "-c", KILL_SERVERAPP)
    killed = time.monotonic()
    said = run.end()
    assert run.process.returncode == 1, said
    assert "the run failed" in said
    assert 2 <= len(run.history) < ROUNDS
    recovered("ServerApp killed, the run known to have failed", time.monotonic() - killed)
    resume(federation, "serverapp-killed", recovered)
    same(run, undisturbed)


def test_a_killed_superlink_costs_no_finished_round(
    federation: Federation, undisturbed: Run, recovered: Callable[[str, float], None]
) -> None:
    superlink = federation.container("superlink")
    clients = federation.clients()
    ids = [federation.client_id(client) for client in clients]
    connections = [federation.logs(client).count("connected to") for client in clients]
    run = federation.run("superlink-killed", *SAMPLED)
    run.wait_for_begin(4)
    time.sleep(1.0)
    docker("kill", superlink)
    killed = time.monotonic()
    docker("start", superlink)
    wait_until(lambda: len(run.history) > 3, "the round ends that was under way", 240)
    recovered("SuperLink killed and started again, the next round finished", time.monotonic() - killed)
    run.finished()
    assert "the SuperLink came back, and continues it as run" in run.said
    same(run, undisturbed)
    # Its database kept nodes and keys: nobody had to be registered anew, no client was started again.
    assert [federation.client_id(client) for client in federation.clients()] == ids
    assert [federation.logs(client).count("connected to") for client in clients] == connections
    listed = federation.compose("run", "--rm", "-T", "--no-deps", "federation", "federation", "list")
    assert all(client_id in listed for client_id in ids)


def resume(federation: Federation, name: str, recovered: Callable[[str, float], None]) -> None:
    """Go on with a run to its end."""
    before = len(Run(None, federation.runs / name).history)  # type: ignore[arg-type]
    since = time.monotonic()
    again = federation.resume(name)
    wait_until(lambda: len(again.history) > before, "the next round ends")
    recovered(f"resumed ({name}), next round finished", time.monotonic() - since)
    again.finished()
    assert "0 of them new" in again.said


def same(run: Run, undisturbed: Run) -> None:
    """Check that a run had the same participants in every round and ended with the same model."""
    assert run.participation == undisturbed.participation
    assert [line["round"] for line in run.history] == list(range(1, ROUNDS + 1))
    for name in ("joined", "gm_appeal"):
        assert [line[name] for line in run.history] == [line[name] for line in undisturbed.history]
    ours, theirs = run.arrays(), undisturbed.arrays()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
