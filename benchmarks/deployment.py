"""Rounds of a deployed federation on this machine: our long-lived clients, and Flower's stock SuperNodes.

ServerApp, ClientApp, strategy and settings are the same; only what runs the clients differs.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.runner import ROOT, BenchRow, Figures, command

CLIENTS = 3
_SHARED = "--partition iid --influence off --start-timeout 600 --round-timeout 600"
_FMNIST = f"--task fmnist --strategy maxfl {_SHARED} --clients {CLIENTS} --min-clients {CLIENTS} --local-steps 30"


@contextmanager
def supernode(home: Path, number: int, address: str) -> Iterator[None]:
    """Run one of Flower's SuperNodes until the end of the ``with`` statement."""
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    programs = Path(sys.executable).parent
    words = [str(programs / "flower-supernode"), "--insecure", "--superlink", address]
    words += ["--node-config", f"partition-id={number} num-partitions={CLIENTS}", "--host", "127.0.0.1"]
    path = {"PATH": os.pathsep.join((str(programs), os.environ["PATH"])), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **path, "FLWR_HOME": str(home), "OMP_NUM_THREADS": "1"}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*words, "--port", str(port)], stdout=log, stderr=log, env=environment)
    try:
        yield
    finally:  # what it has started ends with it
        process.kill()
        process.wait()


def stock(words: str, rounds: int) -> Figures:
    """Run a federation whose clients are stock SuperNodes; at most 4 rounds."""
    from fedappeal.federation.superlink import SuperLink
    from fedappeal.flower.versions import SUPERNODE_SPEAKS_HTTP

    with TemporaryDirectory() as scratch, ExitStack() as nodes:
        superlink = nodes.enter_context(SuperLink(Path(scratch) / "superlink", http=SUPERNODE_SPEAKS_HTTP))
        for number in range(CLIENTS):
            nodes.enter_context(supernode(Path(scratch) / f"node{number}", number, superlink.stock_address))
        return command(f"submit --superlink {superlink.control_address} --no-report {words}", min(rounds, 4))


ROWS = {
    f"deployment/{name}": BenchRow(
        {
            "long-lived-clients": partial(command, f"local {_FMNIST} --evaluate-every {every} --no-report"),
            "stock-supernodes": partial(stock, f"{_FMNIST} --evaluate-every {every}"),
        },
        "long-lived-clients",
        "s",
        rounds=8,
    )
    for name, every in (("train+evaluate", 1), ("train", 0))
}
