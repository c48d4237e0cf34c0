"""The same apps under Flower's own runtimes: stock SuperNodes, and the simulation runtime."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fedappeal.core.plugins import PLUGIN_PATH
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.bundle import build_fab
from fedappeal.flower.versions import GRPC_FLEET, SUPERNODE_SPEAKS_HTTP
from fedappeal.record.reader import Record
from fedappeal.settings.config import RunConfig
from strategies.rounds.exchange.exchange import SLOW_ALONE
from tests.docs.pages import write_plugins
from tests.e2e.conftest import BIN, Marked
from tests.federation.conftest import Federation, wait_until, warm
from tests.federation.test_remote import server_app, waiting
from tests.ports import free_port
from tests.project_copy import copy_project
from tests.warm import MARK, warm_superlinks

__all__ = ["warm"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]  # several processes of each test import PyTorch


OTHER = os.environ.get("FEDAPPEAL_OTHER_FLOWER")
# A run of both versions starts all that a run of one does, and more.
PROGRAMS = [pytest.param([BIN, Path(OTHER).parent], id="both") if OTHER else pytest.param([BIN], id="one version")]


class Nodes:
    """Clients of one run, stock SuperNodes and long-lived ones, each of the Flower that lies beside its program."""

    def __init__(self, marked: Marked, folder: Path, number: int) -> None:
        self._marked, self._folder, self.number = marked, folder, number
        self._ours: list[subprocess.Popen[bytes]] = []
        self._stock: list[subprocess.Popen[bytes]] = []

    def _start(self, programs: Path, *command: str, warm: bool = True) -> "subprocess.Popen[bytes]":
        # What it starts is of its own Flower; two of one user need two folders of Flower's files.
        name = f"node{len(self.all)}"
        env = {"PATH": f"{programs}:{self._marked.env['PATH']}", "FLWR_HOME": str(self._folder / name)}
        words = (str(programs / command[0]), *command[1:])
        return self._marked.start(*words, log=self._folder / f"{name}.log", env=env, warm=warm)

    @property
    def all(self) -> "list[subprocess.Popen[bytes]]":
        return self._ours + self._stock

    def join(self, programs: Path, fleet_address: str) -> None:
        partition = str(len(self.all))
        words = ["fedappeal", "client", "--insecure", "--superlink", fleet_address, "--partition-id", partition]
        self._ours.append(self._start(programs, *words, "--state-dir", str(self._folder / f"state{partition}")))

    def join_stock(self, programs: Path, address: str, *, warm: bool = True) -> None:
        config = f"partition-id={len(self.all)} num-partitions={self.number}"
        words = ["flower-supernode", "--insecure", "--superlink", address, "--host", "127.0.0.1"]
        words += ["--port", str(free_port()), "--node-config", config]
        self._stock.append(self._start(programs, *words, warm=warm))

    def end(self) -> None:
        assert [node.poll() for node in self.all] == [None] * self.number
        for node in self.all:
            node.terminate()
        assert [node.wait(80) for node in self._ours] == [0] * len(self._ours)
        for node in self._stock:
            node.wait(80)
        self._marked.end_executors()

    def said(self) -> str:
        return "\n".join(log.read_text()[-2000:] for log in sorted(self._folder.glob("node*.log")))


def settings(folder: Path, clients: int) -> bytes:
    """Return a bundle of two mandatory rounds for clients that are never content, and have goodwill for one."""
    unmet = {"requirement": "fixed", "fixed.loss": 0.0, "mandatory-rounds": 2, "goodwill": 1}
    size = {"clients": clients, "min-clients": clients, "rounds": 2, "local-steps": 5, "round-timeout": 600.0}
    return build_fab(RunConfig.parse({**size, **unmet, "out": str(folder)}).as_config())


def run_to_its_end(control_address: str, bundle: bytes, nodes: Nodes) -> None:
    remote = RemoteSuperLink(control_address)
    run_id = remote.start_run(bundle, {})
    deadline = time.monotonic() + 800
    while not (status := remote.run_status(run_id)).finished:
        assert time.monotonic() < deadline, nodes.said()
        time.sleep(0.5)
    nodes.end()
    assert status.completed, status


def check_rounds(folder: Path, clients: int) -> None:
    """Check that the server asked beyond the clients' goodwill: all joined once, and none joined then.

    Beside two faster clients, a stock SuperNode may be too slow in the second round for the server to wait for it, in
    training or in the evaluation after it.
    """
    first, second = Record(folder).history
    columns = ("mandatory", "asked", "joined", "left")
    more = ("sat_out", "failed", "evaluated")
    assert [first[key] for key in (*columns, *more)] == [True, clients, clients, 0, 0, 0, clients]
    assert [second[key] for key in columns] == [True, clients, 0, 0]
    late = [part for reason in second.get("failures", {}).values() for part in reason.split("; ")]
    assert [part for part in late if not part.removeprefix("evaluation: ").startswith(SLOW_ALONE)] == []
    assert second["absent"] == sum(part.startswith(SLOW_ALONE) for part in late)
    assert second["sat_out"] == clients - second["absent"] >= min(2, clients)
    assert min(2, clients) <= second["evaluated"] <= second["expected"] == clients


@pytest.mark.parametrize("programs", PROGRAMS)
def test_stock_supernodes_and_long_lived_clients_in_one_run(
    marked: Marked, tmp_path: Path, programs: list[Path]
) -> None:
    """A stock SuperNode that speaks HTTP alone needs a SuperLink that does: one of 1.42 cannot join one of 1.39."""
    environment = {MARK: marked.mark}
    http = SUPERNODE_SPEAKS_HTTP
    with warm_superlinks(), SuperLink(tmp_path / "superlink", environment=environment, http=http) as superlink:
        stock = [BIN, *(programs[1:] if SUPERNODE_SPEAKS_HTTP else [])]
        number = len(programs) + len(stock)
        nodes = Nodes(marked, tmp_path, number)
        for folder in programs:
            nodes.join(folder, superlink.fleet_address)
        nodes.join_stock(BIN, superlink.stock_address, warm=False)  # its processes start as a user's do
        for folder in stock[1:]:
            nodes.join_stock(folder, superlink.fleet_address)
        run_to_its_end(superlink.control_address, settings(tmp_path / "run", number), nodes)
    check_rounds(tmp_path / "run", number)
    for k in range(len(programs)):
        assert "goodwill: 1 of 1 round spent" in (tmp_path / f"node{k}.log").read_text()


def flwr_run(marked: Marked, control_address: str, *options: str) -> str:
    """Submit the project by Flower's own command, follow the run to its end, and return what the command said."""
    marked.home.mkdir(exist_ok=True)
    (marked.home / "config.toml").write_text(
        f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "{control_address}"\ninsecure = true\n'
    )
    project = copy_project(marked.home.with_name("project"))
    done = marked.run(str(BIN / "flwr"), "run", str(project), "mine", "--stream", *options, warm=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("programs", PROGRAMS)
def test_flwr_run_with_all_clients_over_http(marked: Marked, tmp_path: Path, programs: list[Path]) -> None:
    """Stock SuperNodes and clients of either version at the port that serves the Fleet API over HTTP alone."""
    environment = {MARK: marked.mark}
    with warm_superlinks(), SuperLink(tmp_path / "superlink", environment=environment, http=True) as superlink:
        number = len(programs) + SUPERNODE_SPEAKS_HTTP
        nodes = Nodes(marked, tmp_path, number)
        for folder in programs:
            nodes.join(folder, superlink.http_address)
        if SUPERNODE_SPEAKS_HTTP:
            nodes.join_stock(BIN, superlink.http_address)
        folder = tmp_path / "run"
        size = f"clients={number} min-clients={number} rounds=2 local-steps=5 round-timeout=600.0 out='{folder}'"
        unmet = "requirement='fixed' set='fixed.loss=0.0' mandatory-rounds=2 goodwill=1"
        flwr_run(marked, superlink.control_address, "-c", f"{size} {unmet}")
        nodes.end()
    check_rounds(folder, number)


@pytest.mark.usefixtures("warm")
def test_over_http_with_keys_each_part_is_killed_and_the_run_resumed(tmp_path: Path) -> None:
    federation = Federation(tmp_path, http=True)
    folder, log = tmp_path / "run", tmp_path / "log"
    try:
        federation.superlink.start()
        assert federation.register("0", "1").code == 0
        clients = [federation.client(number) for number in range(2)]
        submit = waiting(federation, log, "--rounds", "500", "--strategy", "fedavg", "--out", str(folder))

        def history() -> list[dict[str, Any]]:
            return list(Record(folder).history)

        wait_until(history)
        clients[0].end(signal.SIGKILL)
        federation.client(0).wait_for("connected to")
        rounds = len(history())
        wait_until(lambda: 2 in [line["joined"] for line in history()[rounds + 1 :]])
        server_app(federation).send_signal(signal.SIGKILL)
        assert submit.wait(120) == 1
        os.kill(federation.superlink.pid, signal.SIGKILL)
        wait_until(lambda: not federation.superlink.alive)  # and its ports are free
        federation.superlink.start()
        more = len(history()) + 3
        done = federation.fedappeal("resume", str(folder), "--rounds", str(more))
    finally:
        federation.end()
    assert done.code == 0, done.out + done.err
    assert [line["round"] for line in history()] == list(range(1, more + 1))
    assert [line["joined"] for line in history()[-3:]] == [2, 2, 2]


@pytest.mark.parametrize(
    "transport", [pytest.param("grpc", marks=pytest.mark.grpc), *(["http"] if SUPERNODE_SPEAKS_HTTP else [])]
)
@pytest.mark.parametrize("programs", PROGRAMS)
def test_long_lived_clients_join_a_stock_superlink(
    marked: Marked, tmp_path: Path, programs: list[Path], transport: str
) -> None:
    port = str(free_port())
    fleet, control = f"127.0.0.1:{free_port()}", f"127.0.0.1:{port}"
    superlink = marked.start(
        str(BIN / "flower-superlink"),
        *("--insecure", "--disable-runtime-dependency-installation", "--fleet-api-address", fleet),
        *("--host", "127.0.0.1", "--port", port),
        log=tmp_path / "superlink.log",
        env={GRPC_FLEET: "1"},
        warm=True,
    )
    deadline = time.monotonic() + 240
    while socket.socket().connect_ex(("127.0.0.1", int(port))) != 0:
        assert time.monotonic() < deadline, (tmp_path / "superlink.log").read_text()
        time.sleep(0.1)
    nodes = Nodes(marked, tmp_path, len(programs))
    for folder in programs:
        nodes.join(folder, fleet if transport == "grpc" else control)
    run_to_its_end(control, settings(tmp_path / "run", len(programs)), nodes)
    superlink.terminate()
    superlink.wait(80)
    check_rounds(tmp_path / "run", len(programs))


@pytest.mark.ray
def test_flwr_run_in_the_simulation_runtime(marked: Marked, tmp_path: Path) -> None:
    """With a strategy of one's own, whose settings the one key `set` carries."""
    folder, code = tmp_path / "run", write_plugins(tmp_path / "code")
    environment = {MARK: marked.mark, PLUGIN_PATH: str(code)}
    with SuperLink(tmp_path / "superlink", ("--insecure", "--simulation"), environment=environment) as superlink:
        # Ray gives its own node 30 s to start, which no option changes: on a busy machine that takes another try.
        for _ in range(3):
            said = flwr_run(
                marked,
                superlink.control_address,
                *("--federation-config", "num-supernodes=3 client-resources-num-cpus=1"),
                *("-c", f"clients=3 rounds=2 local-steps=5 start-timeout=700 out='{folder}'"),
                *("-c", "strategy='mine.fedyogi:FedYogi' local-rule='prox' fedprox.proximal-mu=0.5"),
                *("-c", "set='solo.steps=7 defect.leave-below=0.1 fedyogi.server-lr=0.05'"),
            )
            if "timed out during startup" not in said:
                break
            folder = tmp_path / f"{folder.name}-again"
        # Ray's processes end a while after the run: the SuperLink and its executor are what stays.
        deadline = time.monotonic() + 60
        while any("ray" in p.info["name"] or "simulation" in p.info["name"] for p in marked.alive()):
            assert time.monotonic() < deadline, marked.alive()
            time.sleep(0.5)
    rounds = Record(folder).history
    assert [(r["joined"], r["evaluated"]) for r in rounds] == [(3, 3), (3, 3)], said[-3000:]
    settings = Record(folder).config["settings"]
    assert (settings["fedprox.proximal-mu"], settings["solo.steps"], settings["fedyogi.server-lr"]) == (0.5, 7, 0.05)
