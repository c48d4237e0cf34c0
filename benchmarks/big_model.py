"""Memory, checkpoints and seconds a round of a deployed federation whose model is large.

A SuperLink, its ServerApp and two clients on loopback train a stack of linear layers by FedAvg, few local steps, so
that moving the model takes most of a round. Printed: peak resident memory over the model's bytes, beyond what the
same run of a tiny model takes; bytes and seconds of a checkpoint; seconds a round, over plain gRPC streaming of the
bytes that clients receive and send. ``python benchmarks/big_model.py --json FILE`` (``--parameters 5``: a quick look)
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil

from fedappeal.core.plugins import PLUGIN_PATH
from fedappeal.protocol.metric import ACCURACY
from fedappeal.settings.config import RunConfig
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.task import Task

CLIENTS = 2
LAYERS = 8
INPUTS, CLASSES, EXAMPLES = 16, 10, 8
TINY = 0.01
"""Millions of parameters of the run whose memory is taken off: what the imports need, and all else but the model."""
CHUNK = 5 << 20
"""Bytes of one message of the plain stream; Flower's chunks have as many."""
WIDTH = "FEDAPPEAL_BENCHMARK_WIDTH"
SAMPLE_EVERY = 0.05
_METHODS = "/big_model.Stream/"


class Stack(Task):
    """Linear layers of one width, and eight examples a client."""

    name = "stack"
    input_shape = (INPUTS,)
    num_classes = CLASSES
    metric = ACCURACY

    def initial_model(self, seed: int) -> Any:
        """Return w_0; its width comes from the environment, as this is no task for others."""
        from torch import nn

        from fedappeal.tasks import models

        width = int(os.environ[WIDTH])
        inner = (nn.Linear(width, width, bias=False) for _ in range(LAYERS))
        with models.seeded(seed):
            return nn.Sequential(nn.Linear(INPUTS, width), *inner, nn.Linear(width, CLASSES))

    def load(self, client: int) -> ClientData:
        """Return a client's examples: noise."""
        import torch

        generator = torch.Generator().manual_seed(client)
        x = torch.randn(EXAMPLES, INPUTS, generator=generator)
        split = Split(x, torch.arange(EXAMPLES) % CLASSES)
        return ClientData(split, split)

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Any:
        """Return the cross entropy."""
        import torch

        return torch.nn.functional.cross_entropy(outputs, y, reduction=reduction)

    def metrics(self, outputs: Any, y: Any) -> dict[str, float]:
        """Return the accuracy."""
        return {"accuracy": float((outputs.argmax(dim=1) == y).float().mean())}


def settings(folder: Path, rounds: int, strategy: str, evaluate: bool) -> RunConfig:
    return RunConfig.parse(
        {
            "task": "big_model:Stack",
            "clients": CLIENTS,
            "rounds": rounds,
            "local-steps": 2,
            "batch-size": EXAMPLES,
            "learning-rate": 1e-4,
            "strategy": strategy,
            "participation": "always",
            "requirement": "metric",  # "solo" would have each client train a model of its own first
            "evaluate-every": 1 if evaluate else 0,
            "out": str(folder),
            "resume": True,
            "min-clients": CLIENTS,
            "start-timeout": 600,
            "round-timeout": 600,
        }
    )


class Peaks:
    """Peak resident memory of the processes of a federation, as the kernel counts it, in bytes.

    Args:
        superlink: process id; what it started is the ServerApp's side.
        clients: process id of the clients' parent.
    """

    def __init__(self, superlink: int, clients: int) -> None:
        self.bytes = {"ServerApp": 0, "SuperLink": 0, "client": 0}
        self._superlink, self._clients = superlink, clients
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> dict[str, int]:
        """End the watching; return the peaks."""
        self._over.set()
        self._thread.join()
        return self.bytes

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_EVERY):
            self._note("SuperLink", [self._superlink])
            self._note("ServerApp", _children(self._superlink))
            self._note("client", _children(self._clients))

    def _note(self, name: str, pids: list[int]) -> None:
        for pid in pids:
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
                self.bytes[name] = max(self.bytes[name], peak)


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def federation(folder: Path, millions: float, rounds: int, strategy: str, evaluate: bool) -> dict[str, Any]:
    """Run a federation; return its peaks, seconds a round, bytes and checkpoints."""
    from fedappeal.federation.clients import ClientProcesses
    from fedappeal.federation.submit import build_fab, run_status, submit
    from fedappeal.federation.superlink import SuperLink
    from fedappeal.record.run_folder import HISTORY, RunFolder, read_lines

    os.environ[WIDTH] = str(max(1, round((millions * 1e6 / LAYERS) ** 0.5)))
    os.environ[PLUGIN_PATH] = str(Path(__file__).resolve().parent)
    config = settings(folder, rounds, strategy, evaluate)
    RunFolder.create(folder, config)
    with ExitStack() as stack:
        superlink = stack.enter_context(SuperLink(folder / "logs"))
        clients = ClientProcesses(
            config,
            initial=folder / "initial.safetensors",
            states=folder / "clients",
            logs=folder / "logs",
            device="cpu",
        )
        stack.callback(clients.end)
        clients.start()
        clients.connect(superlink.fleet_address)
        clients.wait_until_loaded()
        peaks = Peaks(superlink.pid, clients.pid)
        stack.callback(peaks.stop)
        given = config.model_copy(update={"initial_model": str(folder / "initial.safetensors")})
        run_id = submit(superlink.control_address, build_fab(given.as_config()))
        while not (status := run_status(superlink.control_address, run_id)).finished:
            clients.check()
            time.sleep(0.2)
        lines = read_lines(folder / HISTORY)
        if len(lines) != rounds or any(line["joined"] != CLIENTS for line in lines):
            raise RuntimeError(f"the run did not go as it should: {status}; see {folder / 'logs'}")
        used = peaks.stop()
    return {
        "model_bytes": (folder / "model.safetensors").stat().st_size,
        "peaks": used,
        # The first round waits for nothing that the others wait for, and the last one evaluates in any case.
        "seconds": [line["seconds"] for line in lines][1 : None if evaluate else -1],
        "bytes": [line["bytes_up"] + line["bytes_down"] for line in lines][1 : None if evaluate else -1],
        "checkpoint_bytes": (folder / "checkpoint.safetensors").stat().st_size,
    }


def checkpoint_seconds(folder: Path, millions: float, times: int = 5) -> dict[str, list[float]]:
    """Return the seconds of checkpoints, and of a plain write of the model's bytes, in turn, both to the disk."""
    from flwr.app import RecordDict

    from fedappeal.protocol.packing import array_record
    from server.checkpoint import Checkpoint
    from server.checkpoints import write_checkpoint

    folder.mkdir()
    draws = np.random.default_rng(0)
    initial = array_record({"flat": draws.standard_normal(round(millions * 1e6), dtype=np.float32)})
    found: dict[str, list[float]] = {"checkpoint": [], "plain": []}
    for number in range(1, times + 1):
        values = draws.standard_normal(round(millions * 1e6), dtype=np.float32)
        model = array_record({"flat": values})
        started = time.perf_counter()
        write_checkpoint(folder, Checkpoint(number, initial, model, RecordDict()))
        found["checkpoint"].append(time.perf_counter() - started)
        started = time.perf_counter()
        with open(folder / "plain", "wb") as file:
            file.write(values.data)
            file.flush()
            os.fsync(file.fileno())
        found["plain"].append(time.perf_counter() - started)
    # The first one is left out: of a run it is the one that also writes w_0.
    return {name: seconds[1:] for name, seconds in found.items()}


def stream_seconds(model_bytes: int, times: int = 5) -> list[float]:
    """Return the seconds in which clients, side by side, receive and then send a model's bytes over plain gRPC."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, __file__, "--serve", str(model_bytes)], **pipes) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        address = server.stdout.readline().strip()
        seconds = []
        for _ in range(times):
            command = [sys.executable, __file__, "--stream", address]
            clients = [subprocess.Popen(command, **pipes) for _ in range(CLIENTS)]
            for client in clients:
                client.stdout.readline()  # it has started
            started = time.perf_counter()
            for client in clients:
                client.stdin.write("\n")
                client.stdin.flush()
            for client in clients:
                client.stdout.readline()
            seconds.append(time.perf_counter() - started)
            for client in clients:
                client.communicate()
        server.communicate()
    return seconds


def serve(size: int) -> None:
    """Be the plain stream's server until standard input ends."""
    import grpc

    content = bytes(CHUNK)

    def down(request: bytes, context: Any) -> Iterator[bytes]:
        for start in range(0, size, CHUNK):
            yield content[: min(CHUNK, size - start)]

    def up(requests: Iterator[bytes], context: Any) -> bytes:
        return str(sum(map(len, requests))).encode()

    handlers = {"down": grpc.unary_stream_rpc_method_handler(down), "up": grpc.stream_unary_rpc_method_handler(up)}
    server = grpc.server(futures.ThreadPoolExecutor(CLIENTS), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("big_model.Stream", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(0)


def stream(address: str) -> None:
    """Be a client of the plain stream: receive all, then send it back."""
    import grpc

    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        grpc.channel_ready_future(channel).result()
        print("ready", flush=True)
        sys.stdin.readline()
        received = list(channel.unary_stream(_METHODS + "down")(b""))
        channel.stream_unary(_METHODS + "up")(iter(received))
        print("done", flush=True)


def main() -> None:
    """Measure and print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--parameters", type=float, default=86.0, help="of the model, in millions")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--strategy", default="fedavg")
    parser.add_argument("--train-only", action="store_true", help="evaluate after the last round alone")
    parser.add_argument(
        "--folder", type=Path, default=None, help="parent of the runs' folders; default: a temporary one"
    )
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--stream", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
    elif given.stream:
        stream(given.stream)
    else:
        measure(given)


def peaks_in_models(tiny: dict[str, Any], big: dict[str, Any]) -> dict[str, float]:
    """Print each process's peak memory; return it over the model's bytes, without what the tiny run takes."""
    size, models = big["model_bytes"], {}
    print(f"model: {size / 1e6:.0f} MB, {CLIENTS} clients")
    print(f"{'peak memory':<12}{'tiny, MB':>10}{'big, MB':>10}{'models':>8}")
    for name, peak in big["peaks"].items():
        models[name] = (peak - tiny["peaks"][name]) / size
        print(f"{name:<12}{tiny['peaks'][name] / 1e6:>10.0f}{peak / 1e6:>10.0f}{models[name]:>8.1f}", flush=True)
    return models


def measure(given: argparse.Namespace) -> None:
    """Measure and print."""
    evaluate = not given.train_only
    with tempfile.TemporaryDirectory(prefix="fedappeal-benchmark-", dir=given.folder) as root:
        tiny = federation(Path(root) / "tiny" / "run", TINY, given.rounds, given.strategy, evaluate)
        big = federation(Path(root) / "big" / "run", given.parameters, given.rounds, given.strategy, evaluate)
        size = big["model_bytes"]
        models = peaks_in_models(tiny, big)
        streams = stream_seconds(size)
        checkpoints = checkpoint_seconds(Path(root) / "checkpoints", given.parameters)
    each, plain = (statistics.median(checkpoints[name]) for name in ("checkpoint", "plain"))
    print(f"checkpoint: {big['checkpoint_bytes'] / size:.2f} models, {each:.2f} s; a plain write {plain:.2f} s")
    seconds, streamed = statistics.median(big["seconds"]), statistics.median(streams)
    moved = statistics.median(big["bytes"]) / size
    # The stream moves each client's model down and up: it is scaled to the bytes that a round moved.
    ratio = seconds / (streamed * moved / (2 * CLIENTS))
    print(
        f"round: {seconds:.2f} s for {moved:.1f} models; stream {streamed:.2f} s for {2 * CLIENTS}; ratio {ratio:.1f}"
    )
    if given.json:
        from machine import described

        figures = {"models": models, "ratio": ratio, "stream": streams, "checkpoints": checkpoints}
        report = {**described(), **vars(given), "tiny": tiny, "big": big, **figures}
        given.json.write_text(json.dumps(report, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
