"""Rounds of a deployed federation on this machine: seconds, CPU, and requests at the SuperLink.

``deployment`` compares our long-lived clients with Flower's stock SuperNodes: the same ServerApp, ClientApp, strategy
and settings, and only what runs the clients differs. ``requests`` counts requests a client and round beside the least
that a message's objects make necessary; docs/benchmarks.md derives that.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.run import ROOT, Figures, Row

CLIENTS = 3
WARM_UP = 2
"""Rounds before those that count."""
FLOOR = {"PullMessages": 2, "PullObject": 9, "ConfirmMessageReceived": 2, "PushMessages": 2, "PushObject": 9}
"""Requests of one client and round."""


class Deployed:
    """A SuperLink and its clients, until the end of the ``with`` statement, and one run on them.

    Args:
        settings: of the run.
        stock: whether Flower's SuperNodes run the clients.
        database: whether the SuperLink keeps its state in a file.
        connect: starts other clients in place of ours, given the Fleet API's address; returns a process id.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        stock: bool = False,
        database: bool = False,
        connect: Callable[[ExitStack, str], int] | None = None,
    ) -> None:
        from fedappeal.settings.config import RunConfig

        self._stack = ExitStack()
        root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fedappeal-benchmark-")))
        waits = {"min-clients": settings["clients"], "start-timeout": 600, "round-timeout": 600}
        self.folder = root / "run"
        self.config = RunConfig.parse({**settings, **waits, "out": str(self.folder), "resume": True})
        self._stock, self._database, self._connect = stock, root / "state.db" if database else None, connect

    def __enter__(self) -> "Deployed":
        """Start all."""
        from benchmarks.counting import Counting
        from fedappeal.runs.launch.clients import ClientProcesses

        root = self.folder.parent
        self.superlink = self._stack.enter_context(Counting(root / "superlink", database=self._database))
        if self._connect is not None:
            self.clients = [self._connect(self._stack, self.superlink.fleet_address)]
        elif self._stock:
            self.clients = [self._supernode(k) for k in range(self.config.clients)]
        else:
            places = {"initial": root / "initial.safetensors", "states": root / "states", "logs": root / "logs"}
            clients = ClientProcesses(self.config, **places, device="cpu")
            self._stack.callback(clients.end)
            clients.start()
            clients.connect(self.superlink.fleet_address)
            clients.wait_until_loaded()
            self.clients = [clients.pid]
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        self._stack.close()

    def _supernode(self, number: int) -> int:
        import psutil

        home = self.folder.parent / f"node{number}"
        home.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        programs = Path(sys.executable).parent
        command = [str(programs / "flower-supernode"), "--insecure", "--superlink", self.superlink.fleet_address]
        command += ["--node-config", f"partition-id={number} num-partitions={self.config.clients}"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        path = {"PATH": os.pathsep.join((str(programs), os.environ["PATH"])), "PYTHONPATH": str(ROOT)}
        environment = {**os.environ, **path, "FLWR_HOME": str(home), "OMP_NUM_THREADS": "1"}
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

        def end() -> None:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            process.wait()

        self._stack.callback(end)
        return process.pid

    def run(self, look: Callable[[int], None] = lambda rounds: None) -> list[dict[str, Any]]:
        """Run to the end; return the history.

        Args:
            look: called again and again with the number of finished rounds.

        Raises:
            RuntimeError: not every client that a round asks joined.
        """
        from fedappeal.federation.submit import run_status, submit
        from fedappeal.flower.bundle import build_fab
        from fedappeal.runs.plan import RunPlan

        RunPlan.of(self.config, self.folder).folder({})
        initial = self.folder.parent / "initial.safetensors"
        given = self.config.model_copy(update={"initial_model": str(initial)} if initial.exists() else {})
        run_id, history = (
            submit(self.superlink.control_address, build_fab(given.as_config())),
            self.folder / "history.jsonl",
        )
        while not run_status(self.superlink.control_address, run_id).finished:
            for _ in range(10):
                look(history.read_bytes().count(b"\n") if history.exists() else 0)
                time.sleep(0.02)
        lines = [json.loads(line) for line in history.read_text().splitlines()]
        asked = self.config.clients_per_round or self.config.clients
        if len(lines) != self.config.rounds or {line["joined"] for line in lines} != {asked}:
            raise RuntimeError(f"not every client joined every round: {lines[-1:]}; see {self.superlink.log_file}")
        return lines


def cpu(pids: list[int], children: bool = True) -> float:
    """Return the CPU seconds so far of processes, and of their children, ended ones included."""
    import psutil

    total = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in [root, *(root.children(recursive=True) if children else ())]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + (times.children_user + times.children_system) * children
    return total


def rounds_of(federation: Deployed) -> tuple[list[dict[str, Any]], dict[str, float], Counter[str], int]:
    """Run; return the history, CPU seconds a round, and the requests and number of the rounds that count."""
    marks: list[tuple[int, float, float, Counter[str]]] = []
    last = federation.config.rounds - 1  # the end of a run is left out

    def look(rounds: int) -> None:
        if (rounds >= min(WARM_UP, last - 1) and not marks) or (marks and marks[-1][0] < rounds <= last):
            used = cpu([federation.superlink.pid], children=False), cpu(federation.clients)
            marks.append((rounds, *used, federation.superlink.counts()))

    lines = federation.run(look)
    (first, *before, then), (end, *after, now) = marks[0], marks[-1]
    number = max(1, end - first)
    names = ("SuperLink CPU s", "clients' CPU s")
    used = {name: (b - a) / number for name, a, b in zip(names, before, after, strict=True)}
    return lines, used, now - then, number


def deployed(settings: Mapping[str, Any], stock: bool, database: bool, rounds: int) -> Figures:
    """Run a federation; return what a round takes, and its requests a client."""
    from benchmarks.counting import by_kind

    rounds = min(rounds, 4) if stock else rounds
    with Deployed({**settings, "rounds": rounds, "mandatory-rounds": rounds}, stock, database) as federation:
        lines, used, counts, number = rounds_of(federation)
    sent = {key: lines[0][key] for key in ("bytes_up", "bytes_down")}
    seconds = [float(line["seconds"]) for line in lines[1:-1]]
    return {"s": seconds, **used, **sent, **by_kind(counts, number * int(settings["clients"]))}


def floor(rounds: int) -> Figures:
    """Return the fewest requests of a client and round."""
    return {"Fleet": sum(FLOOR.values()), **{f"Fleet {kind}": number for kind, number in FLOOR.items()}}


_MAXFL = {"partition": "iid", "strategy": "maxfl"}
_FMNIST = {**_MAXFL, "task": "fmnist", "clients": CLIENTS, "local-steps": 30, "batch-size": 32}
_DIGITS = {**_MAXFL, "task": "digits", "local-steps": 5, "batch-size": 8, "evaluate-every": 1}

ROWS = {
    **{
        f"deployment/{name}": Row(
            {
                "long-lived clients": partial(deployed, {**_FMNIST, "evaluate-every": every}, False, False),
                "stock SuperNodes": partial(deployed, {**_FMNIST, "evaluate-every": every}, True, False),
            },
            "long-lived clients",
            "s",
            rounds=8,
        )
        for name, every in (("train+evaluate", 1), ("train", 0))
    },
    "requests": Row(
        {"counted": partial(deployed, {**_DIGITS, "clients": 20}, False, False), "floor": floor}, "floor", "Fleet", 15
    ),
    "requests/database": Row(
        {
            "with a database": partial(deployed, {**_DIGITS, "clients": 6}, False, True),
            "in memory": partial(deployed, {**_DIGITS, "clients": 6}, False, False),
        },
        "in memory",
        "SuperLink CPU s",
        rounds=15,
    ),
}
