"""A SuperLink that is killed and comes back on its database continues what was under way, and nothing else."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest

from fedappeal.federation import superlink
from fedappeal.federation.superlink import SuperLink
from fedappeal.record.lines import RESTARTED
from fedappeal.record.reader import Record, damages
from fedappeal.system.files import read_safetensors
from tests.federation.conftest import Federation, wait_until
from tests.federation.test_remote import SHORT, run_id, waiting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]  # a SuperLink starts three times in one test
ROUNDS = [*SHORT, "--rounds", "8", "--seed", "3"]


class Resuming(SuperLink):
    """`fedappeal superlink --resume` in the place of a SuperLink."""

    def _command(self, fleet: int, control: int) -> list[str]:
        own = super()._command(fleet, control)
        begin = own.index("fedappeal.federation.own_superlink") + 1
        return [sys.executable, "-P", "-m", "fedappeal.cli.main", "superlink", "--resume", *own[begin:]]


@pytest.fixture(scope="module")
def back(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation of two clients, whose SuperLink resumes."""
    running = Federation(tmp_path_factory.mktemp("back"))
    plain = running.superlink
    running.superlink = Resuming(plain.folder, plain._options, plain._fleet_port)
    try:
        running.superlink.start()
        assert running.register("0", "1").code == 0
        for number in range(2):
            running.client(number)
        yield running
    finally:
        running.end()


def listed(federation: Federation) -> dict[str, list[tuple[str, str]]]:
    """Return the runs of each folder's name: id and status."""
    runs: dict[str, list[tuple[str, str]]] = {}
    for run in json.loads(federation.fedappeal("federation", "runs", "--json").out):
        runs.setdefault(Path(run["folder"]).name, []).append((run["run-id"], run["status"]))
    return runs


def restart(federation: Federation, how: int = signal.SIGKILL) -> None:
    """End the SuperLink and start it again, at the ports that it had."""
    before = psutil.Process(federation.superlink.pid)
    before.send_signal(how)
    before.wait(120)
    addresses = federation.superlink.fleet_address, federation.superlink.control_address
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    with patch.object(superlink, "_free_ports", lambda count: [*ports, 0][:count]):
        federation.superlink.start()


def test_what_was_under_way_continues_and_ends_as_if_nothing_had_happened(back: Federation) -> None:
    runs = back.folder / "runs"
    whole, stopped, killed = (runs / name for name in ("whole", "stopped", "killed"))
    done = back.fedappeal("submit", *ROUNDS, "--out", str(whole))
    assert done.code == 0, done.out + done.err
    submit = waiting(back, back.folder / "stopped.log", "--rounds", "500", "--out", str(stopped))
    wait_until(lambda: Record(stopped).history)
    assert back.fedappeal("federation", "stop", run_id(back.folder / "stopped.log")).code == 0
    assert submit.wait(240) == 1
    submit = waiting(back, back.folder / "killed.log", *ROUNDS[len(SHORT) :], "--out", str(killed))
    wait_until(lambda: len(Record(killed).history) >= 2)
    before = listed(back)

    restart(back)
    assert submit.wait(600) == 0, (back.folder / "killed.log").read_text()
    after = listed(back)
    assert {name: after[name] for name in ("whole", "stopped")} == {
        name: before[name] for name in ("whole", "stopped")
    }
    (first, ended), (second, completed) = after["killed"]
    assert (ended, completed) == ("stopped", "completed")
    assert Record(killed).decisions == Record(whole).decisions
    assert [line["round"] for line in Record(killed).history] == list(range(1, 9)), "each round once"
    assert list(damages(killed)) == []
    ours, theirs = (read_safetensors(each / "model.safetensors")[0] for each in (killed, whole))
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5)

    [event] = [line for line in Record(killed).events if line["event"] == RESTARTED]
    assert str(event["run"]) == first
    assert Record(killed).snapshot.restarted == event["time"]
    said = f"run {first} was under way when the SuperLink ended: it continues as run {second}"
    assert said in back.superlink.log_file.read_text()
    follower = (back.folder / "killed.log").read_text()
    assert f"the SuperLink came back, and continues it as run {second}" in follower
    assert "the SuperLink is back, and continues the run" in follower
    assert not list(back.folder.glob("*.continue"))

    restart(back)
    assert listed(back) == after, "nothing is under way any more"


def test_what_was_under_way_when_it_was_told_to_end_continues_too(back: Federation) -> None:
    """As an upgrade does; relative to the SuperLink's working folder."""
    run = back.superlink.folder / "long"
    begun = back.fedappeal("submit", *SHORT, "--rounds", "500", "--out", "long", "--detach")
    assert begun.code == 0, begun.err
    wait_until(lambda: run.exists() and Record(run).history)
    restart(back, signal.SIGTERM)
    wait_until(lambda: [line for line in Record(run).events if line["event"] == "resumed"])
    wait_until(lambda: listed(back)["long"][0] == (begun.out.strip(), "stopped"))
    _, (second, status) = listed(back)["long"]
    assert status in ("starting", "running")
    assert back.fedappeal("federation", "stop", second).code == 0
