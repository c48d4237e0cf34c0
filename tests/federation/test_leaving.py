"""A client's key is struck off by a call that this key signs, over both transports, and by no other client's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedappeal.flower.node.fleet import NodeForgotten, NotConnected
from fedappeal.flower.node.fleet_api import TIMEOUT, FleetApi
from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.node.fleet_http import HttpFleet
from tests.federation.conftest import Federation

pytestmark = pytest.mark.e2e


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    running = Federation(tmp_path, http=True)
    running.superlink.start()
    yield running
    running.end()


def test_a_key_strikes_itself_off_and_no_other(federation: Federation) -> None:
    assert federation.register("0", "1", "2").code == 0
    ca = (federation.certs / "ca.crt").read_bytes()

    def fleet(name: str, *, http: bool) -> FleetApi:
        key = load_ssh_private_key(federation.key(name).read_bytes(), None)
        address = federation.superlink.http_address if http else federation.superlink.fleet_address
        return (HttpFleet if http else GrpcFleet)(address, key, insecure=False, root_certificates=ca)  # type: ignore[arg-type]

    victim = fleet("2", http=False)
    node = victim.activate(10.0)
    for name, http in (("0", False), ("1", True)):
        mine = fleet(name, http=http)
        own = mine.activate(10.0)
        with pytest.raises(NotConnected):
            mine.unregister(node, TIMEOUT)
        mine.unregister(own, TIMEOUT)
        with pytest.raises(NodeForgotten):
            mine.unregister(own, TIMEOUT)
        mine.close()
    assert victim.heartbeat(node, 10.0)
    victim.close()
    rows = federation.fedappeal("federation", "list").out.splitlines()[1:]
    assert [(row.split()[0], "unregistered" in row) for row in rows] == [("0", True), ("1", True), ("2", False)]
    assert "was unregistered once" in federation.register("0").err, "it never comes back"
