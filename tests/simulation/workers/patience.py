"""Ray gives a node 30 seconds to start, which a machine that runs other tests may not have."""

import os
import time
from typing import Any

PATIENCE = 240.0


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
