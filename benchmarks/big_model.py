"""A deployed federation whose model is large: memory, seconds a round, and checkpoints.

A SuperLink, its ServerApp and two clients on loopback train a stack of linear layers by FedAvg, few local steps, so
that moving the model takes most of a round. Memory is the peak that the kernel counts: what a tiny model takes is to
be taken off. The stream is plain gRPC of the bytes that clients receive and send.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.deployment import Deployed
from benchmarks.run import Figures, Row, peak_mib

CLIENTS = 2
PARAMETERS = 86_000_000
CHUNK = 5 << 20
"""Bytes of one message of the plain stream; Flower's chunks have as many."""
_ANY_SIZE = [("grpc.max_receive_message_length", -1)]


def federation(parameters: int, rounds: int) -> Figures:
    """Run a federation; return seconds for each model that a round moves, and its processes' peaks."""
    import psutil

    from benchmarks.tasks import LAYERS, WIDTH
    from fedappeal.core.plugins import PLUGIN_PATH

    os.environ[WIDTH] = str(max(1, round((parameters / LAYERS) ** 0.5)))
    os.environ[PLUGIN_PATH] = str(Path(__file__).resolve().parents[1])
    settings = {"task": "benchmarks.tasks:Stack", "clients": CLIENTS, "strategy": "fedavg", "rounds": rounds}
    settings |= {"local-steps": 2, "batch-size": 8, "learning-rate": 1e-4, "participation": "always"}
    settings |= {"requirement": "metric"}  # "solo" would have each client train a model of its own first
    peaks = {"SuperLink MiB": 0.0, "ServerApp MiB": 0.0, "client MiB": 0.0}

    def look(rounds: int) -> None:
        link = running.superlink.pid
        for name, parent in (("ServerApp MiB", link), ("client MiB", running.clients[0])):
            with suppress(psutil.NoSuchProcess, OSError, StopIteration):
                for child in psutil.Process(parent).children(recursive=True):
                    peaks[name] = max(peaks[name], peak_mib(process=child.pid))
        peaks["SuperLink MiB"] = peak_mib(process=link)

    with Deployed({**settings, "evaluate-every": 1}) as running:
        lines = running.run(look)[1:]  # the first round waits for nothing that the others wait for
        model, checkpoint = (
            (running.folder / f"{name}.safetensors").stat().st_size for name in ("model", "checkpoint")
        )
    moved = [(line["bytes_up"] + line["bytes_down"]) / model for line in lines]
    each = [line["seconds"] / models for line, models in zip(lines, moved, strict=True)]
    sizes = {"models moved": moved, "model MiB": model / 2**20, "checkpoint, models": checkpoint / model}
    return {"s a model": each, "s": [line["seconds"] for line in lines], **sizes, **peaks}


def stream(rounds: int) -> Figures:
    """Return the seconds a model in which clients, side by side, receive and then send models over plain gRPC."""
    context = multiprocessing.get_context("spawn")
    address: Any = context.Queue()
    server = context.Process(target=_serve, args=(4 * PARAMETERS, address), daemon=True)
    server.start()
    line, seconds = context.Barrier(CLIENTS + 1), list[float]()
    at = address.get()
    clients = [context.Process(target=_stream, args=(at, line, rounds), daemon=True) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    line.wait()
    for _ in range(rounds):
        began = time.perf_counter()
        line.wait()
        seconds.append(time.perf_counter() - began)
    server.terminate()
    return {"s a model": [taken / (2 * CLIENTS) for taken in seconds], "s": seconds}


def _serve(size: int, address: Any) -> None:
    import grpc

    content = bytes(CHUNK)

    def down(request: bytes, context: Any) -> Iterator[bytes]:
        for start in range(0, size, CHUNK):
            yield content[: min(CHUNK, size - start)]

    def up(requests: Iterator[bytes], context: Any) -> bytes:
        return str(sum(map(len, requests))).encode()

    handlers = {"down": grpc.unary_stream_rpc_method_handler(down), "up": grpc.stream_unary_rpc_method_handler(up)}
    server = grpc.server(futures.ThreadPoolExecutor(CLIENTS), options=_ANY_SIZE)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Stream", handlers),))
    address.put(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    server.wait_for_termination()


def _stream(address: str, line: Any, rounds: int) -> None:
    import grpc

    with grpc.insecure_channel(address, _ANY_SIZE) as channel:
        grpc.channel_ready_future(channel).result()
        line.wait()
        for _ in range(rounds):
            received = list(channel.unary_stream("/Stream/down")(b""))
            channel.stream_unary("/Stream/up")(iter(received))
            line.wait()


def checkpoints(plain: bool, rounds: int) -> Figures:
    """Return the seconds of checkpoints, or of plain writes of the model's bytes, both synced to the disk."""
    import numpy as np
    from flwr.app import RecordDict

    from fedappeal.protocol.packing import array_record
    from server.checkpoints import Checkpoint, write_checkpoint

    draws, seconds = np.random.default_rng(0), list[float]()
    initial = array_record({"flat": draws.standard_normal(PARAMETERS, dtype=np.float32)})
    with TemporaryDirectory(dir=".") as folder:
        for number in range(1, rounds + 1):
            values = draws.standard_normal(PARAMETERS, dtype=np.float32)
            model, began = array_record({"flat": values}), time.perf_counter()
            if plain:
                with open(f"{folder}/plain", "wb") as file:
                    file.write(values.data)
                    file.flush()
                    os.fsync(file.fileno())
            else:
                write_checkpoint(Path(folder), Checkpoint(number, initial, model, RecordDict()))
            seconds.append(time.perf_counter() - began)
    return {"s": seconds[1:]}  # the first checkpoint of a run also writes w_0


ROWS = {
    "big-model/round": Row(
        {
            "86 million parameters": partial(federation, PARAMETERS),
            "tiny, for its memory": partial(federation, 10_000),
            "plain stream": stream,
        },
        "plain stream",
        "s a model",
        rounds=4,
    ),
    "big-model/checkpoint": Row(
        {"checkpoint": partial(checkpoints, False), "plain write": partial(checkpoints, True)},
        "plain write",
        "s",
        rounds=5,
    ),
}
