"""What `nodes` relies on: how the SuperLink tells of nodes, their keys and who registered them."""

from typing import Any

import pytest
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.server.superlink.fleet.vce import vce_api
from flwr.supercore.auth.typing import AccountInfo
from flwr.superlink.servicer.control.control_handlers import register_node

from fedappeal.flower.grid.inbox import ConnectedNode, ConnectedNodes
from tests.flower.conftest import Server
from tests.grid import MemoryGrid, Volunteer


class LinkGrid(MemoryGrid):
    """A grid that answers as the Runtime API does: with the link state's own words."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def get_nodes(self) -> Any:
        return self.state.get_node_info(statuses=["online"])


def test_a_real_node_has_the_key_that_its_calls_are_signed_with(server: Server) -> None:
    (first, first_id), (second, second_id) = server.node(), server.node()
    nodes = ConnectedNodes(LinkGrid(server.state)).now()
    assert [node.node_id for node in nodes] == [first_id, second_id], "in the order of their registration"
    assert [node.public_key for node in nodes] == [fleet._signer.public_key for fleet in (first, second)]  # type: ignore[attr-defined]
    assert all(node.real and not node.registered for node in nodes)


def test_the_operator_alone_gives_a_node_its_name(server: Server) -> None:
    fleet = server.fleet()
    request = RegisterNodeRequest(public_key=fleet._signer.public_key, name="alice")  # type: ignore[attr-defined]
    register_node(request, AccountInfo("", ""), server.state)
    fleet.activate(10.0)
    server.node()
    assert [node.registered for node in ConnectedNodes(LinkGrid(server.state)).now()] == [True, False]


def test_nodes_of_flowers_simulation_are_not_real(server: Server) -> None:
    vce_api._register_nodes(3, server.states)
    nodes = ConnectedNodes(LinkGrid(server.state)).now()
    assert len(nodes) == 3
    assert not any(node.real for node in nodes)


@pytest.mark.parametrize("ids", [[], [10, 11]])
def test_a_grid_that_knows_node_ids_alone_has_simulated_ones(ids: list[int]) -> None:
    grid = MemoryGrid({node: Volunteer(str(node)) for node in ids})
    assert ConnectedNodes(grid).now() == [ConnectedNode(node) for node in ids]


def test_ids_that_stay_the_same_are_the_same_list() -> None:
    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    nodes = ConnectedNodes(grid)
    first = nodes.now()
    assert nodes.now() is first
    del grid.nodes[11]
    assert nodes.now() == [ConnectedNode(10)]
