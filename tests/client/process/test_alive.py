"""A client process as an operator sees it: signs of life, metrics, JSON lines."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from client.process.heartbeat import heartbeat_problem
from fedappeal.system.json_log import FIELDS
from tests.ports import free_port
from tests.warm import WarmPopen

parser = pytest.importorskip("prometheus_client.parser", reason="the extra metrics is not installed")


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


@pytest.mark.e2e
def test_a_client_shows_that_it_lives_and_logs_events(superlink: Any, tmp_path: Path) -> None:
    heartbeat, port = tmp_path / "heartbeat", free_port()
    command = [sys.executable, "-m", "fedappeal.cli.main", "client", "--superlink", superlink.fleet_address]
    command += ["--partition-id", "0", "--insecure", "--state-dir", str(tmp_path / "state"), "--device", "cpu"]
    command += ["--heartbeat", str(heartbeat), "--metrics-port", str(port), "--log-format", "json"]
    with WarmPopen(command, env=os.environ, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None
            connected = json.loads(client.stdout.readline())
            assert tuple(connected) == FIELDS
            assert (connected["event"], connected["logger"]) == ("connected", "fedappeal.client")
            deadline = time.monotonic() + 30
            while heartbeat_problem(heartbeat, time.time()) is not None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert heartbeat_problem(heartbeat, time.time()) is None
            found = metrics(port)
            assert (found["fedappeal_client_connected"], found["fedappeal_client_paused"]) == (1, 0)
            assert found["fedappeal_client_last_alive_seconds"] == pytest.approx(time.time(), abs=60)
        finally:
            client.send_signal(signal.SIGTERM)
            said = client.communicate(timeout=30)[0]
        assert client.returncode == 0
        assert json.loads(said.splitlines()[-1])["event"] == "ended"
