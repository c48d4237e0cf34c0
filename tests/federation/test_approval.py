"""An owner who is asked: a run begins without the client, which joins once it is approved; a change asks again."""

import json
import subprocess
from pathlib import Path

import pytest

from client.approval import asking
from fedappeal.federation.nodes import PublicKey
from fedappeal.record.reader import Record
from tests.federation.conftest import ENVIRONMENT, Federation, wait_until
from tests.warm import WarmPopen

pytestmark = pytest.mark.e2e
SHORT = [
    "--clients",
    "2",
    "--min-clients",
    "1",
    "--start-after",
    "0.5",
    "--local-steps",
    "1",
    "--set",
    "solo.steps=1",
]


def submitted(federation: Federation, folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    """Submit a run that lasts until it is stopped."""
    given = [*SHORT, "--rounds", "5000", "--evaluate-every", "0", "--out", str(folder), *options]
    with folder.with_suffix(".log").open("wb") as out:
        command = federation.command("submit", *given)
        return WarmPopen(command, env=ENVIRONMENT, cwd=federation.folder, stdout=out, stderr=subprocess.STDOUT)


def rounds_of(folder: Path, client: str) -> list[int]:
    return [line["round"] for line in Record(folder).decisions if line["client-id"] == client]


def stop(federation: Federation, submit: "subprocess.Popen[bytes]") -> None:
    runs = json.loads(federation.fedappeal("federation", "runs", "--json").out)
    for run in runs:
        if run["status"] == "running":
            assert federation.fedappeal("federation", "stop", run["run-id"]).code == 0
    submit.wait(120)


def test_a_run_waits_for_no_owner_and_takes_the_client_once_it_is_approved(federation: Federation) -> None:
    assert federation.register("0", "1").code == 0
    clients = [federation.client(0), federation.client(1, "--approve", "asked")]
    for client in clients:
        client.wait_for("connected to")
    careful = PublicKey.read(federation.key("1").with_suffix(".pub")).client_id
    state, folder = clients[1].log.parent, federation.folder / "asked"
    submit = submitted(federation, folder)
    clients[1].wait_for("roll call: waiting")
    wait_until(lambda: folder.exists() and len(Record(folder).history) > 2)
    assert rounds_of(folder, careful) == []
    listed = json.loads(federation.fedappeal("federation", "list", "--run", str(folder), "--json").out)
    assert {node["client-id"]: node["status"] for node in listed}[careful] == "waiting"
    assert "(min-clients)" not in folder.with_suffix(".log").read_text()
    status = federation.run(["client", "status", "--state-dir", str(state)]).out
    assert "waits for its owner's approval: a run of" in " ".join(status.split())

    run_key = next(run for run in asking(state) if not run.isdigit())
    done = federation.run(["client", "approve", run_key, "--state-dir", str(state)])
    assert done.code == 0, done.err
    wait_until(lambda: rounds_of(folder, careful))
    assert min(rounds_of(folder, careful)) > 2
    assert all("failures" not in line for line in Record(folder).history), "to come late is no fault"
    listed = json.loads(federation.fedappeal("federation", "list", "--run", str(folder), "--json").out)
    assert {node["client-id"]: node["status"] for node in listed}[careful] == "online"
    stop(federation, submit)

    again, other = federation.folder / "again", federation.folder / "other"
    submit = submitted(federation, again)
    wait_until(lambda: again.exists() and rounds_of(again, careful))
    stop(federation, submit)
    submit = submitted(federation, other, "--batch-size", "16")
    clients[1].wait_for("roll call: waiting")
    wait_until(lambda: other.exists() and Record(other).history)
    assert rounds_of(other, careful) == []
    stop(federation, submit)
    assert [client.end() for client in clients] == [0, 0]
