"""The live page of a real SuperLink: its nodes by their names, a paused one, stop and resume, over HTTP."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.record.lines import PARTICIPATION
from fedappeal.record.reader import Record
from fedappeal.views.live.actions import SubmittedRun
from fedappeal.views.live.page import live_page
from fedappeal.views.live.view import View
from fedappeal.web.serving import PagePlace, ServedPage
from tests.federation.conftest import Client, Federation, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
RUN = ["--clients", "2", "--rounds", "100000", "--local-steps", "5", "--set", "solo.steps=5", "--round-timeout", "4"]


class Reader:
    """What an open page has been told so far, as the page puts it together."""

    def __init__(self, page: ServedPage) -> None:
        self.shown: dict[str, Any] = {}
        known = {"Authorization": f"Bearer {page.token}", "Origin": f"http://{page.address}"}
        self.client = httpx.Client(base_url=f"http://{page.address}", headers=known, trust_env=False, timeout=120)
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        seen = 0
        try:
            while True:
                news = self.client.get("/data.json", params={"seen": seen}).json()
                self.shown |= news
                seen = news["seen"]
                time.sleep(0.2)
        except (httpx.HTTPError, RuntimeError):  # RuntimeError: this end was closed
            self.ended.set()

    def clients(self) -> dict[str, str]:
        """The states of the clients, by their registered names."""
        return {row["name"]: row["state"] for row in self.shown.get("clients", {}).get("rows", [])}

    def state(self) -> str:
        return str((self.shown.get("run") or {}).get("state", ""))


@pytest.fixture(scope="module")
def clients(federation: Federation) -> list[Client]:
    done = federation.register("0", "1", "2")
    assert done.code == 0, done.err
    return [federation.client(number) for number in range(2)]


@pytest.fixture
def reader(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    # A question over TLS takes so long that the page asks each 15 s, for which the run would go on.
    monkeypatch.setattr("fedappeal.views.live.view.ASKED_WITHIN", 0.5)
    ca = str(federation.certs / "ca.crt")
    remote = RemoteSuperLink.checked(federation.superlink.control_address, ca)
    with live_page(View(SubmittedRun(remote), None, remote), PagePlace(0)) as page:
        reading = Reader(page)
        yield reading
    reading.client.close()


def test_the_superlinks_latest_run_is_shown_stopped_and_resumed(
    federation: Federation, clients: list[Client], reader: Reader
) -> None:
    wait_until(lambda: reader.clients() == {"0": "connected", "1": "connected", "2": "registered"})
    folder: Path = federation.folder / "runs" / "watched"
    done = federation.fedappeal("submit", *RUN, "--participation", "always", "--out", str(folder), "--detach")
    assert done.code == 0, done.err
    wait_until(lambda: reader.clients() == {"0": "joined", "1": "joined", "2": "registered"})
    assert reader.shown["run"]["folder"] == str(folder)
    assert re.search(r"key-[0-9a-f]{16}", (folder / PARTICIPATION).read_text())
    wait_until(lambda: len(reader.client.get("/charts.json").json()["charts"]) > 2)
    for drawn in (reader.client.get("/charts.json").text, reader.client.get("/report").text):
        assert "Who joined when" in drawn
        assert not re.search(r"key-[0-9a-f]{16}", drawn), "clients are shown by their registered names"

    state = str(clients[1].log.parent)
    assert federation.run(["client", "pause", "--state-dir", state]).code == 0
    wait_until(lambda: reader.clients()["1"] == "resting")
    assert federation.run(["client", "reset", "--state-dir", state]).code == 0
    wait_until(lambda: reader.clients()["1"] == "joined")

    [run] = reader.shown["superlink"]["runs"]
    stopped = reader.client.post("/stop", json={"run": run["run-id"]})
    assert stopped.json() == {"said": f"run {run['run-id']} was stopped"}
    wait_until(lambda: reader.state() == "stopped" and reader.shown["actions"]["resume"])
    rounds = len(Record(folder).history)
    resumed = reader.client.post("/resume")
    assert resumed.status_code == 200, resumed.text
    wait_until(lambda: len(Record(folder).history) > rounds + 1)
    wait_until(lambda: reader.state() == "running" and not reader.shown["actions"]["resume"])
    again = reader.client.post("/stop", json={})
    assert again.json()["said"].endswith("was stopped")
    assert again.json()["said"] != stopped.json()["said"]
