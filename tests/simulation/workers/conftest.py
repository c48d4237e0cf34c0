"""One Ray cluster of two nodes on this machine for all tests of this folder: it takes seconds to start."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.workers.patience import be_patient


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with 2 CPUs each, with a token; its address is ``cluster.address``."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "token")
        patched.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patched.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        be_patient()
        from ray.cluster_utils import Cluster

        nodes = Cluster()
        try:
            for _ in range(2):
                nodes.add_node(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
            yield nodes
        finally:
            nodes.shutdown()
