"""One Ray cluster of two nodes on this machine for all tests of a module: it takes seconds to start."""

import secrets
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

WITH_TOKEN = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_agent_register_timeout_ms": "300000",  # Ray's 30 s are short on a busy machine
    "RAY_worker_register_timeout_seconds": "300",
}
"""Ray's environment."""
LEAN = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
    "object_store_memory": 100 << 20,
}
"""Processes that a node can do without: Ray gives the others fixed seconds to start."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with 2 CPUs each, with a token; its address is ``cluster.address``."""
    if find_spec("ray") is None:
        pytest.skip("needs ray")
    # Before ray is imported: it reads them then.
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**WITH_TOKEN, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
            patched.setenv(name, value)
        from ray.cluster_utils import Cluster

        nodes = Cluster()
        try:
            for _ in range(2):
                _add_node(nodes)
            yield nodes
        finally:
            nodes.shutdown()


def _add_node(nodes: Any) -> None:
    """Add a node; where the machine is too busy for Ray the first time, once more."""
    try:
        nodes.add_node(num_cpus=2, **LEAN)
    except Exception as error:  # Ray's own
        if "timed out during startup" not in str(error):
            raise
        nodes.add_node(num_cpus=2, **LEAN)
