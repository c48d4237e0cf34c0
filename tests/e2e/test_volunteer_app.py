"""Flower apps built and run by `flwr`: that of `fedappeal new app`, and one of scikit-learn, in every runtime."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.approval import approve, asking
from client.process.sandbox import can_confine
from fedappeal.cli.main import main
from fedappeal.cli.new import write_new
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.versions import SUPERNODE_SPEAKS_HTTP
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors
from tests.e2e.conftest import BIN, Marked
from tests.ports import free_port
from tests.warm import MARK, warm_superlinks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]  # a SuperNode of Flower's imports PyTorch for each message
TOLD = ("loss", "accuracy", "gm_appeal")
DIGITS_APP = Path(__file__).parent / "digitsapp"
ROUND = re.compile(r"round (\d+): accuracy ([\d.]+), gm_appeal ([\d.]+)")


def flwr_run(marked: Marked, superlink: SuperLink, app: Path, *options: str) -> str:
    """Run an app; return what it said."""
    marked.home.mkdir(exist_ok=True)
    (marked.home / "config.toml").write_text(
        f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "{superlink.control_address}"\ninsecure = true\n'
    )
    done = marked.run(str(BIN / "flwr"), "run", str(app), "mine", "--stream", *options, warm=True, timeout=800)
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
    env = {"PYTHONPATH": f"{marked.env['PYTHONPATH']}:{tmp_path / 'hearts'}:{DIGITS_APP}"}
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
            client.wait(80)
        marked.end_executors()


def stock_words(superlink: SuperLink, k: int) -> tuple[str, ...]:
    place = ("--host", "127.0.0.1", "--port", str(free_port()))
    data = ("--node-config", f"partition-id={k} num-partitions=2")
    return ("flower-supernode", "--insecure", "--superlink", superlink.stock_address, *place, *data)


def approve_when_asked(state: Path) -> None:
    """Say yes to the first run whose bundle asks, as its owner."""
    until = time.monotonic() + 800
    while not (runs := asking(state)) and time.monotonic() < until:
        time.sleep(0.2)
    ((run, (_, what)), *_) = runs.items()
    assert "code = hearts.client_app:app of the bundle " in what
    approve(state, run)


def test_on_stock_supernodes(marked: Marked, tmp_path: Path) -> None:
    environment, http = {MARK: marked.mark}, SUPERNODE_SPEAKS_HTTP
    write_new("app", tmp_path / "hearts")
    with (
        warm_superlinks(),
        SuperLink(tmp_path / "superlink", environment=environment, http=http) as superlink,
        both(marked, tmp_path, partial(stock_words, superlink)),
    ):
        said = flwr_run(marked, superlink, tmp_path / "hearts", "-c", "num-server-rounds=2")
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
            said = flwr_run(marked, superlink, tmp_path / "hearts", "-c", "num-server-rounds=3")
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
def test_in_flowers_simulation(marked: Marked, tmp_path: Path) -> None:
    write_new("app", tmp_path / "hearts")
    check_rounds(simulated_by_flower(marked, tmp_path, tmp_path / "hearts", 4, "-c", "num-server-rounds=5"), 5)


def simulated_by_flower(marked: Marked, tmp_path: Path, app: Path, nodes: int, *options: str) -> str:
    environment = {MARK: marked.mark}
    with SuperLink(tmp_path / "superlink", ("--insecure", "--simulation"), environment=environment) as superlink:
        of_ray = "--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"
        for _ in range(3):  # Ray gives its own node 30 s to start
            said = flwr_run(marked, superlink, app, *of_ray, *options)
            if "timed out during startup" not in said:
                break
    return said


@dataclass(frozen=True)
class Trained:
    """What a run of the scikit-learn app leaves: its model, and what clients told of each round's."""

    model: tuple[Any, ...]
    told: dict[str, list[float]]

    @classmethod
    def of(cls, file: Path) -> "Trained":
        with np.load(file) as kept:
            names = sorted(name for name in kept.files if name.startswith("arr_"))
            return cls(tuple(kept[name] for name in names), {name: list(kept[name]) for name in TOLD})

    def check(self, other: "Trained") -> None:
        for mine, theirs in zip(self.model, other.model, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
        assert {name: pytest.approx(values, rel=1e-9) for name, values in other.told.items()} == self.told


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """The scikit-learn app in our simulation, by the strategy and defaults of the app's own server."""
    monkeypatch.syspath_prepend(str(DIGITS_APP))
    out, reference = tmp_path / "ours", "digitsapp.client_app:app"
    words = ("--app", reference, "--arrays", "digitsapp.task:initial", "--clients", "2", "--strategy", "maxfl")
    config = ("--set", "app.penalty=l2", "--set", "app.local-epochs=3", "--rounds", "2", "--out", str(out))
    monkeypatch.setattr("sys.argv", ["fedappeal", "simulate", *words, *config])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    history = Record(out).history
    joined = [line["joined"] for line in history]
    assert joined == [2, 1], "one round on request; then one client has a better model of its own"
    model, _ = read_safetensors(out / MODEL)
    return Trained(tuple(model.values()), {name: [line[name] for line in history] for name in TOLD})


def test_three_lines_are_changed_of_the_scikit_learn_app() -> None:
    lines = [line for file in (DIGITS_APP / "digitsapp").glob("*.py") for line in file.read_text().splitlines()]
    changed = [line for line in lines if "fedappeal" in line or "volunteer" in line]
    assert len(changed) == 3
    assert all(line.endswith("# changed") for line in changed)


@pytest.mark.parametrize("where", ["stock SuperNodes", "confined by their owners"])
def test_the_scikit_learn_app_equals_itself_where_it_is_deployed(
    marked: Marked, tmp_path: Path, ours: Trained, where: str
) -> None:
    stock = where == "stock SuperNodes"
    if not stock and can_confine():
        pytest.skip("this system cannot confine a process")
    environment, http = {MARK: marked.mark}, SUPERNODE_SPEAKS_HTTP
    with warm_superlinks(), SuperLink(tmp_path / "superlink", environment=environment, http=http) as superlink:

        def confined(k: int) -> tuple[str, ...]:
            place = ("--superlink", superlink.fleet_address, "--insecure", "--state-dir", str(tmp_path / f"state{k}"))
            data = ("--app-config", f"partition-id={k} num-partitions=2")
            return ("fedappeal", "client", *place, "--app", "digitsapp.client_app:app", "--goodwill", "1", *data)

        with both(marked, tmp_path, partial(stock_words, superlink) if stock else confined):
            said = flwr_run(marked, superlink, DIGITS_APP, "-c", f'out="{tmp_path / "model.npz"}"')
    assert (tmp_path / "model.npz").exists(), said[-3000:]
    Trained.of(tmp_path / "model.npz").check(ours)


@pytest.mark.ray
def test_the_scikit_learn_app_equals_itself_in_flowers_simulation(
    marked: Marked, tmp_path: Path, ours: Trained
) -> None:
    said = simulated_by_flower(marked, tmp_path, DIGITS_APP, 2, "-c", f'out="{tmp_path / "model.npz"}"')
    assert (tmp_path / "model.npz").exists(), said[-3000:]
    Trained.of(tmp_path / "model.npz").check(ours)
