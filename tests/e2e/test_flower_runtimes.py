"""The same apps under Flower's own runtimes: stock SuperNodes, and the simulation runtime."""

import socket
import time
from pathlib import Path

import psutil
import pytest

from fedappeal.core.plugins import PLUGIN_PATH
from fedappeal.federation.remote import run_status, submit
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.bundle import build_fab
from fedappeal.record.reader import Record
from fedappeal.settings.config import RunConfig
from tests.docs.pages import write_files
from tests.e2e.conftest import BIN, ROOT, Marked, each

pytestmark = pytest.mark.e2e


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_stock_supernodes_and_a_long_lived_client_in_one_run(marked: Marked, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    unmet = {"requirement": "fixed", "fixed.loss": 0.0, "mandatory-rounds": 2, "goodwill": 1}
    config = RunConfig.parse({"clients": 2, "rounds": 2, "local-steps": 5, "out": str(folder), **unmet})
    with SuperLink(tmp_path / "superlink", environment={"FEDAPPEAL_TEST_MARK": marked.mark}) as superlink:
        stock = marked.start(
            str(BIN / "flower-supernode"),
            *("--insecure", "--superlink", superlink.fleet_address, "--host", "127.0.0.1"),
            *("--port", str(free_port()), "--node-config", "partition-id=0 num-partitions=2"),
            log=tmp_path / "supernode.log",
        )
        ours = marked.start(
            str(BIN / "fedappeal"),
            *("client", "--insecure", "--superlink", superlink.fleet_address, "--partition-id", "1"),
            *("--state-dir", str(tmp_path / "state")),
            log=tmp_path / "client.log",
        )
        run_id = submit(superlink.control_address, build_fab(config.as_config()))
        deadline = time.monotonic() + 240
        while not (status := run_status(superlink.control_address, run_id)).finished:
            assert time.monotonic() < deadline, (tmp_path / "supernode.log").read_text()[-2000:]
            time.sleep(0.5)
        assert (stock.poll(), ours.poll()) == (None, None)
        # A stock SuperNode may leave its executor behind for a while; the executor may end by itself at any moment.
        executors = psutil.Process(stock.pid).children(recursive=True)
        ours.terminate()
        stock.terminate()
        each(executors, psutil.Process.terminate)
        assert ours.wait(20) == 0
        stock.wait(20)
        psutil.wait_procs(executors, timeout=20)
        assert status.completed, status
    rounds = Record(folder).history
    # The server asks beyond their goodwill: both clients join once, and no more.
    assert [(r["mandatory"], r["joined"], r["evaluated"]) for r in rounds] == [(True, 2, 2), (True, 0, 2)]
    assert "goodwill: 1 of 1 round spent" in (tmp_path / "client.log").read_text()


def test_flwr_run_in_the_simulation_runtime(marked: Marked, tmp_path: Path) -> None:
    """With a strategy of one's own, whose settings the one key `set` carries."""
    folder, code = tmp_path / "run", write_files("extending.md", tmp_path / "code")
    environment = {"FEDAPPEAL_TEST_MARK": marked.mark, PLUGIN_PATH: str(code)}
    with SuperLink(tmp_path / "superlink", ("--insecure", "--simulation"), environment=environment) as superlink:
        marked.home.mkdir()
        (marked.home / "config.toml").write_text(
            '[superlink]\ndefault = "sim"\n[superlink.sim]\n'
            f'address = "{superlink.control_address}"\ninsecure = true\n'
        )
        done = marked.run(
            str(BIN / "flwr"),
            *("run", str(ROOT), "sim", "--stream"),
            *("--federation-config", "num-supernodes=3 client-resources-num-cpus=1"),
            *("-c", f"clients=3 rounds=2 local-steps=5 strategy='mine.fedyogi:FedYogi' out='{folder}'"),
            *("-c", "local-rule='prox' fedprox.proximal-mu=0.5"),
            *("-c", "set='solo.steps=7 defect.leave-below=0.1 fedyogi.server-lr=0.05'"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # Ray's processes end a while after the run: the SuperLink and its executor are what stays.
        deadline = time.monotonic() + 60
        while any("ray" in p.info["name"] or "simulation" in p.info["name"] for p in marked.alive()):
            assert time.monotonic() < deadline, marked.alive()
            time.sleep(0.5)
    rounds = Record(folder).history
    assert [(r["joined"], r["evaluated"]) for r in rounds] == [(3, 3), (3, 3)], done.stdout[-3000:]
    settings = Record(folder).config["settings"]
    assert (settings["fedprox.proximal-mu"], settings["solo.steps"], settings["fedyogi.server-lr"]) == (0.5, 7, 0.05)
