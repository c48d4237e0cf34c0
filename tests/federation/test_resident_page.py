"""The page beside a SuperLink starts a run from a settings file, stops, continues and extends it, and outlives it."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fedappeal.record.reader import Record
from fedappeal.web.serving import ServedPage
from tests.federation.conftest import FEDAPPEAL, Client, wait_until
from tests.federation.test_live_page import Reader
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
SETTINGS = """
clients = 2
rounds = 100000
local-steps = 5
participation = "always"
round-timeout = 10
[solo]
steps = 5
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "long.toml").write_text(SETTINGS)
    return folder


@pytest.fixture
def metrics() -> int:
    return free_port()


@pytest.fixture
def reader(tmp_path: Path, runs: Path, metrics: int) -> Iterator[Reader]:
    fleet, control = f"127.0.0.1:{free_port()}", free_port()
    options = ["--insecure", "--host", "127.0.0.1", "--port", str(control), "--fleet-api-address", fleet]
    ours = ["--page", "0", "--runs", str(runs), "--metrics-port", str(metrics)]
    processes = [Client([*FEDAPPEAL, "superlink", *options, *ours], tmp_path / "superlink.log")]
    for number in range(2):
        state = tmp_path / str(number)
        state.mkdir()
        given = ["--insecure", "--partition-id", str(number), "--state-dir", str(state), "--connect-timeout", "0"]
        command = [*FEDAPPEAL, "client", "--superlink", fleet, *given]
        processes.append(Client(command, state / "log"))
    try:
        said = re.search(r"http://(\S+)/\?token=(\S+)", processes[0].wait_for("the live page: "))
        assert said
        reading = Reader(ServedPage(*said.groups()))
        yield reading
    finally:
        for process in processes[::-1]:
            process.end()
    wait_until(reading.ended.is_set)  # the page has ended with its SuperLink
    reading.client.close()


def test_a_run_is_started_stopped_continued_and_extended_from_the_page(
    reader: Reader, runs: Path, metrics: int
) -> None:
    def said(place: str, **asked: str) -> str:
        answer = reader.client.post(place, json=asked)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["said"])

    def stopped() -> float:
        """Stop the run; return the seconds after which the page says so."""
        assert said("/stop").endswith("was stopped")
        began = time.monotonic()
        wait_until(lambda: reader.state() in ("interrupted", "stopped"))
        return time.monotonic() - began

    wait_until(lambda: (reader.shown.get("clients") or {}).get("online") == 2)
    assert reader.shown["actions"]["files"] == ["long.toml"]
    assert re.fullmatch(r"run \d+ was started", said("/start", file="long.toml"))
    wait_until(lambda: reader.state() == "running")
    folder = Path(reader.shown["run"]["folder"])
    assert (folder.parent, folder.name[-5:]) == (runs, "-long")
    wait_until(lambda: len(Record(folder).history) > 1)
    assert stopped() < 5  # 2 s where the machine is idle
    rounds = len(Record(folder).history)

    wait_until(lambda: reader.shown["actions"]["resume"])
    assert said("/resume").startswith("it continues as run")
    wait_until(lambda: len(Record(folder).history) > rounds + 1)
    wait_until(lambda: reader.state() == "running")
    stopped()
    total = len(Record(folder).history) + 3
    wait_until(lambda: reader.shown["actions"]["extend"])
    assert said("/resume", rounds=str(total)).startswith("it continues as run")
    wait_until(lambda: reader.state() == "finished")
    assert reader.shown["run"]["total"] == reader.shown["run"]["last"] == total
    wait_until(lambda: not reader.shown["actions"]["stop"])  # once the SuperLink has it as finished, too

    first, *_, latest = reader.shown["superlink"]["runs"][::-1]
    assert len({first["run-id"], latest["run-id"]}) == 2
    assert reader.shown["superlink"]["shown"] == latest["run-id"]
    assert "What came out" in reader.client.get("/report", params={"run": first["run-id"]}).text
    figures = httpx.get(f"http://127.0.0.1:{metrics}/metrics", trust_env=False).text
    assert f"fedappeal_rounds_total {total}.0" in figures
    assert "fedappeal_clients_connected 2.0" in figures
