"""Runs on a long-running SuperLink with real client processes: one after another, resumed, after a restart."""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest

from client.process.owner import PAUSED
from client.state.store import DiskStore
from fedappeal.federation.nodes import PublicKey
from fedappeal.federation.remote import RemoteSuperLink, ServedCertificate
from fedappeal.federation.superlink import SuperLink, SuperLinkError
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors
from fedappeal.system.validity import Validity
from tests.client.certificates import TLS
from tests.federation.conftest import ENVIRONMENT, Client, Federation, wait_until
from tests.warm import WarmPopen

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
SHORT = ["--clients", "2", "--local-steps", "5", "--set", "solo.steps=5", "--round-timeout", "30"]


@pytest.fixture(scope="module")
def clients(federation: Federation) -> list[Client]:
    done = federation.register("0", "1")
    assert done.code == 0, done.err
    return [federation.client(number) for number in range(2)]


@pytest.fixture(scope="module")
def whole(federation: Federation, clients: list[Client]) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = federation.folder / "runs" / "whole"
    done = federation.fedappeal("submit", *SHORT, "--rounds", "8", "--seed", "3", "--out", str(folder))
    assert done.code == 0, done.out + done.err
    assert "2 clients enrolled" in done.out
    assert "after round 8" in done.out
    return folder


def waiting(federation: Federation, log: Path, *options: str) -> "subprocess.Popen[bytes]":
    """Start a `fedappeal submit` that waits, and do not wait for it."""
    with log.open("wb") as out:
        return WarmPopen(
            federation.command("submit", *SHORT, *options),
            env=ENVIRONMENT,
            cwd=federation.folder,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def _runs_a_server_app(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.name() == "serverapp" and process.cwd() == str(folder)
    except psutil.Error:  # one that has just ended
        return False


def server_app(federation: Federation) -> psutil.Process:
    """The forked ServerApp of a SuperLink, in whose folder it runs."""
    return next(p for p in psutil.process_iter() if _runs_a_server_app(p, federation.superlink.folder))


def run_id(log: Path) -> str:
    wait_until(lambda: ": running" in log.read_text())
    return log.read_text().split("run ", 1)[1].split(maxsplit=1)[0].rstrip(":")


def test_the_run_folder_calls_clients_by_the_keys_that_were_registered(federation: Federation, whole: Path) -> None:
    ids = {PublicKey.read(federation.key(name).with_suffix(".pub")).client_id for name in "01"}
    assert {line["client-id"] for line in Record(whole).decisions} == ids
    listed = json.loads(federation.fedappeal("federation", "list", "--json").out)
    assert {node["client-id"]: node["status"] for node in listed} == dict.fromkeys(ids, "online")
    assert all(node["last-seen"] >= node["since"] for node in listed)
    held = {line["client"]: line["examples"] for line in Record(whole).events if line["event"] == "enrolled"}
    assert set(held) == ids
    assert min(held.values()) >= 5
    listed = json.loads(federation.fedappeal("federation", "list", "--run", str(whole), "--json").out)
    assert {node["client-id"]: node["examples"] for node in listed} == held


def test_the_dates_of_its_certificate_are_seen_from_outside(federation: Federation, whole: Path) -> None:
    remote = RemoteSuperLink.checked(federation.superlink.control_address, str(federation.certs / "ca.crt"))
    in_file = Validity.of_server((federation.certs / "server.crt").read_bytes())
    assert ServedCertificate(remote).validity() == in_file
    assert ServedCertificate(RemoteSuperLink(remote.address)).validity() is None


def test_a_second_superlink_on_the_database_is_refused(federation: Federation, whole: Path) -> None:
    options = [*TLS(federation.certs).options, "--database", str(federation.folder / "state.db")]
    second = SuperLink(federation.folder / "second", options)
    process = federation.superlink.pid
    with pytest.raises(
        SuperLinkError, match=f"state.db' is not allowed: the SuperLink of process {process} runs on it"
    ):
        second.start()


def test_the_list_of_runs_says_what_each_is(federation: Federation, whole: Path) -> None:
    [run] = json.loads(federation.fedappeal("federation", "runs", "--json").out)
    assert {key: run[key] for key in ("status", "strategy", "task", "folder")} == {
        "status": "completed",
        "strategy": "maxfl",
        "task": "digits",
        "folder": str(whole),
    }
    assert run["ended"] > run["started"]
    stop = federation.fedappeal("federation", "stop", run["run-id"])
    assert stop.out == f"run {run['run-id']} had already ended\n"


def test_a_run_with_enough_clients_does_not_wait_for_a_paused_one(
    federation: Federation, clients: list[Client], whole: Path
) -> None:
    folder, state = federation.folder / "runs" / "one-paused", clients[1].log.parent
    assert federation.run(["client", "pause", "--state-dir", str(state)]).code == 0
    try:
        clients[1].wait_for("paused: nothing is worked on")
        # A silent client would hold the start up for the round-timeout if it were waited for.
        options = [*SHORT, "--round-timeout", "3000", "--start-timeout", "3000", "--min-clients", "1"]
        done = federation.fedappeal("submit", *options, "--rounds", "1", "--out", str(folder))
    finally:
        (state / PAUSED).unlink()
    assert done.code == 0, done.out + done.err
    assert "1 of 2 clients enrolled: the run begins with them" in done.out
    assert [line["joined"] for line in Record(folder).history] == [1]


def test_a_run_whose_server_app_was_killed_is_resumed_as_if_nothing_had_happened(
    federation: Federation, clients: list[Client], whole: Path
) -> None:
    folder, log = federation.folder / "runs" / "killed", federation.folder / "killed.log"
    submit = waiting(federation, log, "--rounds", "8", "--seed", "3", "--out", str(folder))
    wait_until(lambda: len(Record(folder).history) >= 2)
    server_app(federation).send_signal(signal.SIGKILL)
    assert 2 <= len(Record(folder).history) < 8
    assert submit.wait(30) == 1, "the promise is 10 s; Flower alone finds out after a minute"
    [line] = [line for line in log.read_text().splitlines() if "the run failed" in line]
    assert line.startswith(
        f"fedappeal: run {run_id(log)}: the run failed: its process (ServerApp) was killed by signal 9"
    )
    where = f"--superlink {federation.superlink.control_address} --root-certificates {federation.certs / 'ca.crt'}"
    assert line.endswith(f"; continue with: fedappeal resume {folder} {where}")

    done = federation.fedappeal("resume", str(folder))
    assert done.code == 0, done.out + done.err
    assert "continued after round" in done.out
    assert Record(folder).decisions == Record(whole).decisions
    ours, theirs = (read_safetensors(each / "model.safetensors")[0] for each in (folder, whole))
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5)
    again = federation.fedappeal("resume", str(folder))
    assert again.code == 2
    assert "has finished" in again.err
    # As seen from here: the SuperLink's working folder is another one.
    longer = federation.fedappeal("resume", os.path.relpath(folder), "--rounds", "9")
    assert longer.code == 0, longer.out + longer.err
    assert "continued after round 8" in longer.out
    assert [line["round"] for line in Record(folder).history] == list(range(1, 10))
    record = Record(folder).config
    assert (record["runtime"], record["settings"]["schedule-rounds"]) == ({"kind": "submitted"}, 8)


def test_interrupting_the_wait_leaves_the_run_and_says_how_to_stop_it(
    federation: Federation, clients: list[Client], whole: Path
) -> None:
    folder, log = federation.folder / "runs" / "long", federation.folder / "long.log"
    submit = waiting(federation, log, "--rounds", "500", "--out", str(folder))
    wait_until(lambda: Record(folder).history)
    number = run_id(log)  # which the command may say after the first round only
    submit.send_signal(signal.SIGTERM)
    assert submit.wait(120) == 130
    assert f"run {number} continues; to stop it: fedappeal federation stop {number} --superlink" in log.read_text()
    rounds = len(Record(folder).history)
    wait_until(lambda: len(Record(folder).history) > rounds)
    for told in ("was stopped", "had already ended"):
        stop = federation.fedappeal("federation", "stop", number)
        assert stop.out == f"run {number} {told}\n", stop.err


def test_a_superlink_that_was_killed_and_restarted_keeps_its_nodes(
    federation: Federation, clients: list[Client], whole: Path
) -> None:
    before = json.loads(federation.fedappeal("federation", "list", "--json").out)
    os.kill(federation.superlink.pid, signal.SIGKILL)
    federation.superlink.start()
    after = json.loads(federation.fedappeal("federation", "list", "--json").out)
    assert [(n["client-id"], n["node-id"], n["name"]) for n in after] == [
        (n["client-id"], n["node-id"], n["name"]) for n in before
    ]
    assert [n["name"] for n in after] == ["0", "1"]
    folder = federation.folder / "runs" / "after"
    detached = federation.fedappeal("submit", *SHORT, "--rounds", "2", "--out", str(folder), "--detach")
    assert detached.code == 0, detached.err
    assert detached.out.strip().isdigit()
    wait_until(lambda: (folder / "model.safetensors").exists())
    assert [line["joined"] for line in Record(folder).history] == [2, 2]


def test_a_run_that_fails_ends_the_wait_with_its_reason(federation: Federation, whole: Path) -> None:
    done = federation.fedappeal("submit", *SHORT, "--initial-model", "/no/such/file", "--out", "relative")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "the run failed: " in done.err
    assert "file '/no/such/file' cannot be read" in done.err
    done = federation.fedappeal("submit", "--out", str(whole))
    assert done.code == 2
    assert "already holds a run" in done.err
    done = federation.fedappeal("submit", "--task", "nothing")
    assert done.code == 2
    assert "task = 'nothing' is not allowed" in done.err
    done = federation.fedappeal("resume", str(federation.folder))
    assert done.code == 2
    assert "is not the folder of a run" in done.err


def test_a_client_gets_a_new_key_and_stays_who_it_is(federation: Federation, whole: Path) -> None:
    """Its requirement and its having left are in its state; its id passes to the new key by the operator's word."""
    options = [*SHORT, "--strategy", "fedavg", "--participation", "defect", "--set", "defect.leave-below=2.25"]
    folder = federation.folder / "runs" / "left"
    done = federation.fedappeal("submit", *options, "--rounds", "3", "--out", str(folder))
    assert done.code == 0, done.out + done.err
    old = PublicKey.read(federation.key("0").with_suffix(".pub")).client_id
    left = [line["client-id"] for line in Record(folder).decisions if line["decision"] == "left"]
    assert old in left

    state = federation.folder / "clients" / "0"
    remembered = {name: DiskStore(state).read(name) for name in DiskStore(state).names()}
    runs = {name: r.values for name, r in remembered.items() if name.startswith(("run-", "requirement-"))}
    key = Record(folder).config["run-key"]
    assert runs[f"run-{key}"]["left-round"] > 0

    next(c for c in federation._clients if c.log.parent == state).end()
    assert federation.register("2").code == 0
    client = federation.client(0, "--client-id", old, key="2")
    client.wait_for("connected to")
    new = PublicKey.read(federation.key("2").with_suffix(".pub")).client_id
    passed = federation.run(["federation", "release", old, "--to", new, "--runs", str(folder.parent)])
    assert passed.out == f"client-id '{old}' passes to {new}\n", passed.err
    gone = federation.fedappeal("federation", "unregister", old)
    assert gone.out == f"{old}  unregistered for good  (0)\n", gone.err

    again = federation.folder / "runs" / "rotated"
    done = federation.fedappeal("submit", *options, "--rounds", "3", "--out", str(again))
    assert done.code == 0, done.out + done.err
    assert Record(again).decisions == Record(folder).decisions
    store = DiskStore(state)
    for name, values in runs.items():
        record = store.read(name)
        assert record is not None
        assert record.values == values
    # The requirement was not made again under another name.
    assert {n for n in store.names() if n.startswith("requirement-")} == {
        n for n in runs if n.startswith("requirement-")
    }
    refused = federation.register("0")
    assert refused.code == 1
    assert f"{old} (0) was unregistered once, and this SuperLink never takes a key back" in refused.err
