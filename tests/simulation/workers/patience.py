"""Ray gives a node 30 seconds to start, which a machine that runs other tests may not have."""

import os
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

PATIENCE = 240.0
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
"""Where a node is told of these it does not wait for a process to choose them."""


def free_ports(names: Iterable[str]) -> dict[str, int]:
    """Return a free port of this machine for each name."""
    ports = {}
    with ExitStack() as opened:
        for name in names:
            listening = opened.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            ports[name] = listening.getsockname()[1]
    return ports


def be_patient() -> None:
    """Let Ray wait longer for its own processes; after its environment is set, before it starts."""
    os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "300")
    from ray._private import services

    look = services.get_node

    def wait(*given: Any, **named: Any) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return look(*given, **named)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    services.get_node = wait
