"""Promise: a server that means harm gets error replies from a volunteer's device (real), which serves the next."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from client.training.models import arrays_of
from fedappeal.federation.superlink import SuperLink
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout, view
from fedappeal.settings.config import RunConfig
from fedappeal.tasks import load_task
from tests.client import conftest as client_fixtures

pytestmark = pytest.mark.e2e

MEGABYTE = 10**6
CONFIG = RunConfig.parse({"task": "digits", "strategy": "fedavg", "clients": 2, "local-steps": 5, "solo.steps": 2})


class Server(client_fixtures.Run):
    """A run whose ServerApp asks a client what a test says."""

    settings = CONFIG.as_config()

    def told(self, node: int, kind: str = "train", ttl: float = 60.0, model: Any = None, **config: Any) -> Any:
        """Ask; return the answer and the seconds that it took."""
        since = time.monotonic()
        sent = MODEL if model is None else model
        said = {"run-key": "hostile", "server-round": 1, "mandatory": 1, **config}
        answer = self.pull(self.push(node, kind, sent, ttl, **said), deadline=30.0)
        return answer, time.monotonic() - since


def initial() -> np.ndarray:
    arrays = arrays_of(load_task(CONFIG.task_settings()).initial_model(0))
    return np.array(view(Layout.of(arrays).pack(arrays)["flat"]))


MODEL = initial()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, SuperLink]]:
    folder = tmp_path_factory.mktemp("server")
    root = Path(__file__).parents[2]
    path = os.pathsep.join((str(root / "tests/client"), str(root)))
    with SuperLink(folder / "superlink", environment={"PYTHONPATH": path}) as superlink:
        started = Server(superlink, folder, "0", Server.settings)
        yield started, superlink
        started.tell("end")
        started.close()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("the owner's") / "state of a volunteer"


@pytest.fixture(scope="module")
def volunteer(server: tuple[Server, SuperLink], state: Path) -> Iterator[tuple["psutil.Popen", int]]:
    """A `fedappeal client` whose owner allows 20 MB a message, and any number of steps."""
    run, superlink = server
    command = [sys.executable, "-P", "-m", "fedappeal.cli.main", "client", "--superlink", superlink.fleet_address]
    options = ["--insecure", "--partition-id", "0", "--device", "cpu", "--state-dir", str(state)]
    log = state.with_name("log").open("wb")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    limits = ["--limits", "max-model=20 min-batch=2"]
    process = psutil.Popen([*command, *options, *limits], stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        until = time.monotonic() + 240.0
        while not (nodes := run.nodes()):
            assert process.poll() is None, state.with_name("log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        yield process, nodes[0]
    finally:
        process.kill()
        process.wait()
        log.close()


def test_a_volunteer_outlives_what_a_server_thinks_of(
    server: tuple[Server, SuperLink], volunteer: tuple["psutil.Popen", int], state: Path
) -> None:
    run, (process, node) = server[0], volunteer
    answer, _ = run.told(node, "query", **{keys.PROTOCOL_VERSION: keys.PROTOCOL})
    assert "error" not in answer, answer
    before = process.memory_info().rss

    for number, key in ((1, "local-steps"), (2, "local-epochs")):
        answer, seconds = run.told(node, **{"server-round": number, "local-steps": 0, key: 10**9})
        assert "max-steps = 10000" in answer["error"][1]
        assert seconds < 3.0  # a second is promised
    assert process.memory_info().rss - before < 100 * MEGABYTE

    # A model that is larger than the owner allows is not pulled whole.
    drawn = np.random.default_rng(0).standard_normal(30 * MEGABYTE // 4).astype(np.float32)
    for model in (drawn, np.zeros_like(drawn)):  # of the second Flower sends one piece of 5 MB, named six times
        answer, _ = run.told(node, model=model)
        assert answer["error"][1] == "a message of more than this client's max-model = 20 MB"
    assert process.memory_info().rss - before < 200 * MEGABYTE

    # Steps that are allowed, but not in this time: nothing half-trained is sent, and it is said in time.
    (state / "limits.json").write_text('{"max-steps": 0}')
    answer, seconds = run.told(node, ttl=8.0, **{"server-round": 3, "local-steps": 10**9})
    assert "the message's deadline came before the work was done" in answer["error"][1]
    assert seconds < 8.5

    # What the owner broke is for the owner to read.
    (state / "limits.json").write_text("{")
    answer, _ = run.told(node, **{"server-round": 4})
    assert answer["error"][1].startswith("ConfigError: file (a file of this device) cannot be read")
    (state / "limits.json").unlink()

    storm = [run.told(node, "evaluate", **{"server-round": 5})[0] for _ in range(30)]
    assert sum("error" not in each for each in storm) == 8
    answer, _ = run.told(node, **{"server-round": 5})
    assert answer["metrics"]["decision"] == 1
    assert process.poll() is None
    assert str(state / "limits.json") in state.with_name("log").read_text()
