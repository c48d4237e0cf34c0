"""A thousand light clients on one SuperLink: none lost, none counted twice, and what that takes.

The clients speak the Fleet API as real ones do (`client.fleet`: a key, a node, a connection, a heartbeat and a held
poll each) in one process without PyTorch; client k answers TRAIN with the model plus a constant of its own and claims
a weight of its own. So who trained when, the server's history and the final model have to agree.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.commands import command, cpu
from benchmarks.run import Figures, Row, peak_mib, scaled


def change(number: int) -> float:
    """Return what client ``number`` adds to each value of the model."""
    return 1e-4 * (1 + number)


def examples(number: int) -> int:
    """Return the number of examples that client ``number`` claims."""
    return 1 + number % 7


class Seen:
    """What all clients of the process did, and the lock under which they make messages: Flower's are a process's."""

    def __init__(self) -> None:
        self.making, self.online = threading.Lock(), threading.Semaphore(50)
        self.trained: list[tuple[int, int]] = []
        self.models: dict[str, Any] = {}
        self.connected = 0

    def reply(self, number: int, node_id: int, message: Any) -> Any:
        """Return client ``number``'s answer, by formula."""
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

        from fedappeal.flower.messages import be_sender
        from fedappeal.protocol import keys

        about = message.metadata
        model = {name: array.numpy() for name, array in message.content[keys.ARRAYS].items()}
        metrics, content = {keys.NUM_EXAMPLES: examples(number)}, RecordDict()
        if about.message_type == "query":
            self.models.setdefault("w_0", {name: values.tolist() for name, values in model.items()})
            info = {keys.CLIENT_ID: f"light-{number}", keys.ROLE: keys.SEEN, keys.PRIORITY: 0, keys.LEFT_RUN: 0}
            content[keys.INFO] = ConfigRecord(info)
        elif about.message_type == "train":
            metrics[keys.DECISION] = int(keys.Decision.JOINED)
            moved = {name: Array(values + np.float32(change(number))) for name, values in model.items()}
            content[keys.ARRAYS] = ArrayRecord(moved)
            self.trained.append((int(about.group_id), number))
        else:
            self.models["final"] = {name: values.tolist() for name, values in model.items()}
            metrics |= {keys.LOSS: 1.0, "accuracy": 0.5}
        content[keys.METRICS] = MetricRecord(metrics)
        be_sender(about.run_id, node_id, about.dst_task_id or 0)
        return Message(content, reply_to=message)

    def serve(self, address: str, number: int) -> None:
        """Be client ``number``, for ever."""
        from client.fleet.connection import FleetConnection
        from client.settings import Connection
        from fedappeal.flower.node.fleet import LONGEST_HOLD, NotConnected

        with self.online:
            fleet = FleetConnection(Connection(superlink=address, insecure=True))
        with self.making:
            self.connected += 1
        while True:
            try:
                if (message := fleet.receive(LONGEST_HOLD)) is not None:
                    with self.making:
                        reply = self.reply(number, fleet.node_id, message)
                    fleet.reply(reply, 0.0)
            except NotConnected:
                time.sleep(1.0)


def be_clients(address: str, count: int, file: Path) -> None:
    """Be the light clients, until SIGTERM; then write what they saw."""
    seen, ended = Seen(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    for number in range(count):
        threading.Thread(target=seen.serve, args=(address, number), daemon=True).start()
    while seen.connected < count:
        time.sleep(0.1)
    print("online", flush=True)
    ended.wait()
    file.write_text(json.dumps({key: getattr(seen, key) for key in ("trained", "models")}))
    os._exit(0)  # the clients' threads end here


def checked(folder: Path, seen: dict[str, Any]) -> dict[str, float]:
    """Compare who trained, whom the server counted, and the final model; return the counts.

    Raises:
        RuntimeError: if a client was lost or counted twice.
    """
    import fedappeal

    run, total = fedappeal.load(folder), 0.0
    decisions = run.clients
    for server_round in range(1, run.config.rounds + 1):
        joined = decisions[(decisions["round"] == server_round) & (decisions["decision"] == "joined")]
        counted = sorted(int(client.removeprefix("light-")) for client in joined["client"])
        trained = sorted(number for at, number in seen["trained"] if at == server_round)
        if trained != counted or len(set(trained)) != run.config.clients_per_round:
            raise RuntimeError(f"round {server_round}: {trained} trained, {counted} were counted")
        total += sum(examples(k) * change(k) for k in trained) / sum(map(examples, trained))
    start, end = (seen["models"][name] for name in ("w_0", "final"))
    far = max(float(np.abs(np.asarray(end[name]) - np.asarray(start[name]) - total).max()) for name in start)
    if far > 1e-3:
        raise RuntimeError(f"the final model is {far:g} from the replayed one")
    return {"trained": len(seen["trained"]), "model off by": far}


def connections(clients: int, rounds: int) -> Figures:
    """Run once; return the figures."""
    from fedappeal.federation.superlink import SuperLink

    clients, (_, hard) = scaled(clients), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    words = f"--task digits --strategy fedavg --influence off --clients {clients} --min-clients {clients}"
    words += f" --clients-per-round {max(1, clients // 20)} --evaluate-every {rounds} --mandatory-rounds {rounds}"
    words += " --start-timeout 600 --round-timeout 600 --no-report"
    with TemporaryDirectory() as scratch, SuperLink(Path(scratch) / "superlink") as superlink:
        folder, file, began = Path(scratch) / "run", Path(scratch) / "seen.json", time.monotonic()
        program = [sys.executable, "-m", "benchmarks.connections", superlink.fleet_address, str(clients), str(file)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            connected, before = time.monotonic() - began, cpu([superlink.pid], children=False)
            figures = command(f"submit --superlink {superlink.control_address} {words}", rounds, folder)
            used = (cpu([superlink.pid], children=False) - before) / rounds
            memory = {"SuperLink MiB": peak_mib(superlink.pid), "connected s": connected}
            process.terminate()
            process.wait()
        finally:
            process.kill()
        counts = checked(folder, json.loads(file.read_text()))
    return {"s": figures["s"], "SuperLink CPU s": used, **memory, **counts}


ROWS = {
    f"connections/{n}": Row({"light clients": partial(connections, n)}, by="s", rounds=rounds)
    for n, rounds in ((100, 10), (1000, 100))
}

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    be_clients(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
