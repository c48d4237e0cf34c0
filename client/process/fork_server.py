"""Many clients forked from one process, which has loaded PyTorch and the data.

Importing PyTorch costs seconds of CPU and hundreds of megabytes; a fork shares what its parent has loaded. The
forks happen before any gRPC channel or thread exists, because neither survives a fork.

    python -P -m client.process.fork_server

It reads a JSON plan from standard input, one line, then the address of the SuperLink, one line. The plan:
``clients`` (node settings), ``strategy`` (its name), ``settings`` (the task's), ``logs`` (folder), ``initial`` (where
to write w_0, unless it is there), ``initial-model`` (a file to take it from, or empty).
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from fedappeal.flower.processes import import_without_server
from fedappeal.system.files import private_log
from fedappeal.system.process_end import end_with_parent
from fedappeal.system.tuning import import_torch_without_compiler, quick_imports

_AT_FIRST_USE = (
    "cryptography.hazmat.backends.openssl.backend",
    "grpc._channel",
    "torch.nested._internal.nested_tensor",
)
"""Modules that every client would load by itself, at its first connection and its first gradient."""


def main() -> int:
    """Load everything, fork the clients, and wait until the last has ended or SIGTERM came."""
    plan: dict[str, Any] = json.loads(sys.stdin.readline())

    with quick_imports():
        import_without_server()
        if all(":" not in name for name in (plan["strategy"], *map(str, plan["settings"].values()))):
            import_torch_without_compiler()  # fedappeal's own tasks and models do not use it
        import torch

        for name in _AT_FIRST_USE:
            import_module(name)
        from client.app import learners  # loaded here so that every fork shares it, and what its cache holds
        from client.process.serve import run_client  # noqa: F401
        from client.settings import Connection, NodeSettings
        from fedappeal.core.registry import STRATEGIES
        from fedappeal.settings.config import ConfigError, TaskSettings
        from fedappeal.system.files import write_safetensors
        from fedappeal.tasks.share import initial_arrays

    torch.set_num_threads(1)
    nodes = [NodeSettings.parse(node) for node in plan["clients"]]
    try:
        STRATEGIES.load(plan["strategy"], nodes[0].allowed)
        task = learners.task(TaskSettings.parse(plan["settings"]), nodes[0].data_dir, nodes[0].allowed)
        initial = Path(plan["initial"])
        if not initial.exists():
            # Made here, so that the ServerApp need not import torch to make it again.
            write_safetensors(initial, initial_arrays(task, task.settings.seed, plan["initial-model"]), {})
        task.load(nodes[0].partition_id)
    except ConfigError as error:
        print(error, flush=True)
        return 2
    address = sys.stdin.readline().strip()
    if not address:
        return 0
    connection = Connection.parse({"superlink": address, "insecure": True})
    logs = Path(plan["logs"])
    logs.mkdir(parents=True, exist_ok=True)
    children = {_fork(node, connection, logs): node.partition_id for node in nodes}
    return _wait(children)


def _fork(node: Any, connection: Any, logs: Path) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent(parent)
        os.umask(0o077)
        with private_log(logs / f"client-{node.partition_id:04d}.log") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        from client.app import clients
        from client.process.serve import run_client

        code = run_client(node, connection, clients)
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: the parent's own clean-up belongs to the parent.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(children: dict[int, int]) -> int:
    def forward(signum: int, frame: object) -> None:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    while children:
        pid, status = os.wait()
        partition = children.pop(pid, None)
        if partition is not None and (code := os.waitstatus_to_exitcode(status)):
            print(f"client {partition} ended with exit code {code}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
