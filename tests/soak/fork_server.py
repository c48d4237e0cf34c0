"""The clients of a soak: as `client.process.fork_server` starts them, and started again where one was killed.

Each client reaches the SuperLink by a port of its own, so that its connections alone can be cut.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from client.process import fork_server

PORTS = "FEDAPPEAL_SOAK_PORTS"
"""Variable with each client's port, a JSON list."""
STARTS = "FEDAPPEAL_SOAK_STARTS"
"""Variable with the file that names every process that was started: a line of JSON each, client and pid."""
RESTART_AFTER = 1.0
"""Seconds until a client that was killed is started again."""


def main() -> int:
    """Start the clients, and start again each that is killed, until SIGTERM."""
    ports, starts = json.loads(os.environ[PORTS]), Path(os.environ[STARTS])
    fork = fork_server._fork
    running: dict[int, tuple[Any, ...]] = {}
    ending = False

    def start(node: Any, connection: Any, logs: Path) -> int:
        own = connection.model_copy(update={"superlink": f"127.0.0.1:{ports[node.partition_id]}"})
        pid = fork(node, own, logs)
        running[pid] = (node, connection, logs)
        with starts.open("a") as file:
            file.write(json.dumps({"client": node.partition_id, "pid": pid}) + "\n")
        return pid

    def end(signum: int, frame: object) -> None:
        nonlocal ending
        ending = True
        for pid in list(running):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def wait(children: dict[int, int]) -> int:
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        while running:
            pid, status = os.wait()
            node, *rest = running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if ending:
                continue
            if code != -signal.SIGKILL:
                print(f"client {node.partition_id} ended with exit code {code}", flush=True)
                continue
            time.sleep(RESTART_AFTER)
            started = start(node, *rest)
            if ending:
                os.kill(started, signal.SIGTERM)
        return 0

    fork_server._fork, fork_server._wait = start, wait
    return fork_server.main()


if __name__ == "__main__":
    sys.exit(main())
