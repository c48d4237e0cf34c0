"""Rounds of a deployed federation on this machine.

``deployment`` compares our long-lived clients with Flower's stock SuperNodes: the same ServerApp, ClientApp, strategy
and settings, and only what runs the clients differs. ``big-model``: two clients train a large model by FedAvg; the
peaks of memory are those that the kernel counts, and a tiny model's are to be taken off.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.commands import command
from benchmarks.run import ROOT, Figures, Row, peak_mib, scaled

CLIENTS = 3
_SHARED = "--partition iid --influence off --start-timeout 600 --round-timeout 600"
_FMNIST = f"--task fmnist --strategy maxfl {_SHARED} --clients {CLIENTS} --min-clients {CLIENTS} --local-steps 30"


@contextmanager
def supernode(home: Path, number: int, fleet_address: str) -> Iterator[None]:
    """Run one of Flower's SuperNodes until the end of the ``with`` statement."""
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    programs = Path(sys.executable).parent
    words = [str(programs / "flower-supernode"), "--insecure", "--superlink", fleet_address]
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

    with TemporaryDirectory() as scratch, SuperLink(Path(scratch) / "superlink") as superlink, ExitStack() as nodes:
        for number in range(CLIENTS):
            nodes.enter_context(supernode(Path(scratch) / f"node{number}", number, superlink.fleet_address))
        return command(f"submit --superlink {superlink.control_address} --no-report {words}", min(rounds, 4))


def big_model(parameters: int, rounds: int) -> Figures:
    """Run a federation of two clients; return seconds a round, and the peak MiB of its processes."""
    import psutil

    from benchmarks.stack import LAYERS, WIDTH

    os.environ[WIDTH] = str(round((scaled(parameters) / LAYERS) ** 0.5))
    peaks, ended = {"own_superlink": 0.0, "serverapp": 0.0, "client.process": 0.0}, threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess, OSError, StopIteration):
                    words = " ".join(process.cmdline())
                    for part in peaks:
                        if part in words:
                            peaks[part] = max(peaks[part], peak_mib(process.pid))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        words = "local --task benchmarks.stack:Stack --strategy fedavg --influence off --clients 2 --min-clients 2"
        words += " --local-steps 2 --batch-size 8 --learning-rate 1e-4 --participation always --requirement metric"
        figures = command(f"{words} --evaluate-every 1 --no-report", rounds)
    finally:
        ended.set()
        looking.join()
    model = 4 * scaled(parameters) / 2**20
    return {"s": figures["s"], "model MiB": model, **{f"{part} MiB": most for part, most in peaks.items()}}


ROWS = {
    **{
        f"deployment/{name}": Row(
            {
                "long-lived clients": partial(command, f"local {_FMNIST} --evaluate-every {every} --no-report"),
                "stock SuperNodes": partial(stock, f"{_FMNIST} --evaluate-every {every}"),
            },
            "long-lived clients",
            "s",
            rounds=8,
        )
        for name, every in (("train+evaluate", 1), ("train", 0))
    },
    "big-model": Row(
        {"86 million parameters": partial(big_model, 86_000_000), "tiny, for its memory": partial(big_model, 10_000)},
        "tiny, for its memory",
        "s",
        rounds=4,
    ),
}
