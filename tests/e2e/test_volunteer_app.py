"""The Flower app of `fedappeal new app`: built and run by `flwr`, on stock SuperNodes and in Flower's simulation."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.approval import approve, asking
from client.process.sandbox import can_confine
from fedappeal.cli.new import write_new
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.versions import SUPERNODE_SPEAKS_HTTP
from tests.e2e.conftest import BIN, Marked
from tests.e2e.test_flower_runtimes import free_port
from tests.warm import MARK, warm_superlinks

pytestmark = pytest.mark.e2e
ROUND = re.compile(r"round (\d+): accuracy ([\d.]+), GM-Appeal ([\d.]+)")


def flwr_run(marked: Marked, superlink: SuperLink, folder: Path, *options: str) -> str:
    """Run a new app; return what it said."""
    marked.home.mkdir(exist_ok=True)
    (marked.home / "config.toml").write_text(
        f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "{superlink.control_address}"\ninsecure = true\n'
    )
    app = folder / "hearts"
    if not app.exists():
        write_new("app", app)
    done = marked.run(str(BIN / "flwr"), "run", str(app), "mine", "--stream", *options, warm=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_rounds(said: str, number: int) -> None:
    rounds = [(int(n), float(accuracy), float(appeal)) for n, accuracy, appeal in ROUND.findall(said)]
    assert [n for n, _, _ in rounds] == list(range(1, number + 1)), said[-4000:]
    assert rounds[-1][1] > 0.3, "the model learns: w_0 guesses one digit in ten"


@contextmanager
def both(marked: Marked, tmp_path: Path, words: Callable[[int], tuple[str, ...]]) -> Iterator[None]:
    """Run two clients, each by its words and its log."""
    clients: list[subprocess.Popen[bytes]] = []
    env = {"PYTHONPATH": f"{marked.env['PYTHONPATH']}:{tmp_path / 'hearts'}"}
    try:
        for k in range(2):
            program, *rest = words(k)
            log = tmp_path / f"client{k}.log"
            clients.append(marked.start(str(BIN / program), *rest, log=log, env=env, warm=True))
        yield
    finally:
        for client in clients:
            client.terminate()
        for client in clients:
            client.wait(20)
        marked.end_executors()


def approve_when_asked(state: Path) -> None:
    """Say yes to the first run whose bundle asks, as its owner."""
    until = time.monotonic() + 300
    while not (runs := asking(state)) and time.monotonic() < until:
        time.sleep(0.2)
    ((run, (_, what)), *_) = runs.items()
    assert "code = hearts.client_app:app of the bundle " in what
    approve(state, run)


def test_on_stock_supernodes(marked: Marked, tmp_path: Path) -> None:
    environment, http = {MARK: marked.mark}, SUPERNODE_SPEAKS_HTTP
    with warm_superlinks(), SuperLink(tmp_path / "superlink", environment=environment, http=http) as superlink:

        def words(k: int) -> tuple[str, ...]:
            place = ("--host", "127.0.0.1", "--port", str(free_port()))
            data = ("--node-config", f"partition-id={k} num-partitions=2")
            return ("flower-supernode", "--insecure", "--superlink", superlink.stock_address, *place, *data)

        with both(marked, tmp_path, words):
            said = flwr_run(marked, superlink, tmp_path, "-c", "num-server-rounds=2")
    check_rounds(said, 2)


@pytest.mark.skipif(bool(can_confine()), reason="this system cannot confine a process")
def test_on_owners_clients_that_confine_it(marked: Marked, tmp_path: Path) -> None:
    write_new("app", tmp_path / "hearts")
    environment = {MARK: marked.mark}
    with warm_superlinks(), SuperLink(tmp_path / "superlink", environment=environment) as superlink:

        def words(k: int) -> tuple[str, ...]:
            where = ("--superlink", superlink.fleet_address, "--insecure", "--state-dir", str(tmp_path / f"state{k}"))
            app = ("--app", ("hearts.client_app:app", "bundle")[k])
            return ("fedappeal", "client", *where, *app, "--app-config", f"partition-id={k} num-partitions=2")

        with both(marked, tmp_path, words):
            asked = threading.Thread(target=approve_when_asked, args=(tmp_path / "state1",))
            asked.start()
            said = flwr_run(marked, superlink, tmp_path, "-c", "num-server-rounds=3")
    asked.join()
    log = (tmp_path / "client0.log").read_text()
    check_rounds(said, 3)
    assert "roll call: waiting" in (tmp_path / "client1.log").read_text(), "the run's bundle waited for its owner"
    assert "joined" in log
    assert "requirement 0." in log, "the owner sees by what it decided"
    receipts = marked.run(
        str(BIN / "fedappeal"), "client", "sent", "--state-dir", str(tmp_path / "state0"), warm=True
    )
    assert receipts.returncode == 0, receipts.stdout + receipts.stderr


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_in_flowers_simulation(marked: Marked, tmp_path: Path) -> None:
    environment = {MARK: marked.mark}
    with SuperLink(tmp_path / "superlink", ("--insecure", "--simulation"), environment=environment) as superlink:
        of_ray = "--federation-config", "num-supernodes=4 client-resources-num-cpus=1"
        for _ in range(3):  # Ray gives its own node 30 s to start
            said = flwr_run(marked, superlink, tmp_path, *of_ray, "-c", "num-server-rounds=5")
            if "timed out during startup" not in said:
                break
    check_rounds(said, 5)
