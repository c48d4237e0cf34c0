"""One Ray cluster of two nodes on this machine for all tests of this folder: it takes seconds to start."""

import secrets
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.simulation.workers.patience import AGENT_PORTS, be_patient, free_ports


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with 2 CPUs each, with a token; its address is ``cluster.address``."""
    if find_spec("ray") is None:
        pytest.skip("needs ray")
    # Before ray is imported: it reads them then.
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
                nodes.add_node(
                    num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, **free_ports(AGENT_PORTS)
                )
            yield nodes
        finally:
            nodes.shutdown()
