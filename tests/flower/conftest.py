"""Flower's own server side in this process: the Fleet API's real servicer over the real in-memory state."""

import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink import main
from flwr.superlink.cli.flower_superlink import _run_fleet_api_grpc_rere
from flwr.superlink.federation import NoOpFederationManager

from fedappeal.flower.messages import be_sender
from fedappeal.flower.node.fleet_api import FleetApi
from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.node.fleet_http import HttpFleet
from fedappeal.flower.node.objects import Parcel, inflate
from fedappeal.flower.superlink.connections import serve_http
from fedappeal.flower.superlink.fleet_app import FleetApp
from fedappeal.flower.superlink.guarded_fleet import GuardedFleet
from fedappeal.flower.superlink.held_polls import HeldPolls
from fedappeal.flower.versions import SUPERNODE_SPEAKS_HTTP
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.flower.runtime_api import World


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SuperLink's new database, to be copied: Flower takes half a second of processor time to make one."""
    path = tmp_path_factory.mktemp("database") / "state.db"
    state: Any = LinkStateFactory(str(path), NoOpFederationManager(), ObjectStoreFactory()).state()
    state._engine.dispose()
    return path


@dataclass
class Server:
    """A Fleet API, and what the server's side does with it."""

    address: str
    states: LinkStateFactory
    transport: type[GrpcFleet] | type[HttpFleet] = GrpcFleet
    fleets: list[FleetApi] = field(default_factory=list)

    @property
    def state(self) -> Any:
        return self.states.state()

    def fleet(self) -> FleetApi:
        """Return calls that are signed with a key of their own."""
        key = ec.generate_private_key(ec.SECP256R1())
        self.fleets.append(self.transport(self.address, key, insecure=True, root_certificates=None))
        return self.fleets[-1]

    def node(self) -> tuple[FleetApi, int]:
        """Return the calls of a node that is online, and its id."""
        fleet = self.fleet()
        fleet.register()
        return fleet, fleet.activate(10.0)

    def start_run(self, overrides: dict[str, Any] | None = None, fab: bytes = b"") -> int:
        """Return the id of a run that is running; messages made from now on are its server's."""
        fab_hash = self.state.store_fab(Fab(hashlib.sha256(fab).hexdigest(), fab, {})) if fab else "hash"
        run_id = int(
            self.state.create_run(
                "a/b", "1.0", fab_hash, overrides or {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
            )
        )
        [task] = self.state.get_tasks(run_ids=[run_id])
        assert self.state.claim_task(task.task_id)
        assert self.state.activate_task(task.task_id)
        be_sender(run_id, SUPERLINK_NODE_ID, task.task_id)
        return run_id

    def send(self, message: Message, held_back: int = 0) -> str:
        """Send a message to its node, all objects but the last few; return its id."""
        parcel, run_id = Parcel.of(message), message.metadata.run_id
        session = self.state.start_session(run_id)
        stored, missing = self.state.store_message_and_object_tree(message, parcel.tree, session)
        assert stored
        contents = list(parcel.contents(set(missing)).items())
        for object_id, content in contents[: len(contents) - held_back]:
            assert self.state.store_object(run_id, session, object_id, content)
        return message.metadata.message_id

    def reply(self, message_id: str, run_id: int) -> Message | None:
        """Return the reply to a message, as the server gets it; None if there is none yet."""
        replies = self.state.get_message_res({message_id}, run_id)
        if not replies or replies[0].has_error():
            return replies[0] if replies else None
        reply_id = replies[0].metadata.message_id
        tree = self.states.objectstore_factory.store().get_object_tree(reply_id)
        parts = [node.object_id for node in iterate_object_tree(tree)]
        return inflate(reply_id, {part: self.state.get_object(run_id, part) for part in parts})


def states_of_a_superlink() -> LinkStateFactory:
    return LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())


def serve(
    *, enable_supernode_auth: bool = False, run: Callable[..., grpc.Server] = _run_fleet_api_grpc_rere
) -> Iterator[Server]:
    states = states_of_a_superlink()
    address = f"127.0.0.1:{free_port()}"
    interceptors = [NodeAuthServerInterceptor(states)]
    running = run(
        address=address,
        state_factory=states,
        objectstore_factory=states.objectstore_factory,
        enable_supernode_auth=enable_supernode_auth,
        certificates=None,
        interceptors=interceptors,
    )
    server = Server(address, states)
    yield server
    for fleet in server.fleets:
        fleet.close()
    running.stop(None).wait()


def app_of(states: LinkStateFactory, polls: HeldPolls, *, enable_supernode_auth: bool = False) -> FleetApp:
    """Return our Fleet API over HTTP."""
    named = {"state_factory": states, "objectstore_factory": states.objectstore_factory}
    return FleetApp(GuardedFleet(polls, **named, enable_supernode_auth=enable_supernode_auth), polls)


def stock_app_of(states: LinkStateFactory, *, enable_supernode_auth: bool) -> Any:
    """Return Flower's own Fleet API over HTTP, which 1.40 and later have."""
    app = main.create_app()
    app.state.linkstate_factory, app.state.enable_supernode_auth = states, enable_supernode_auth
    return app


def serve_app(app: Any, states: LinkStateFactory) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = serve_http(app, listener)
        while not running.started:
            time.sleep(0.01)
        server = Server(f"127.0.0.1:{listener.getsockname()[1]}", states, HttpFleet)
        yield server
        for fleet in server.fleets:
            fleet.close()
        running.should_exit = running.force_exit = True


TRANSPORTS = ["grpc", "http", *(["stock-http"] if SUPERNODE_SPEAKS_HTTP else [])]


def serve_by(transport: str, *, enable_supernode_auth: bool = False) -> Iterator[Server]:
    """Serve by gRPC as Flower does, by HTTP as we do, or by HTTP as Flower does."""
    if transport == "grpc":
        return serve(enable_supernode_auth=enable_supernode_auth)
    states = states_of_a_superlink()
    if transport == "http":
        return serve_app(app_of(states, HeldPolls(), enable_supernode_auth=enable_supernode_auth), states)
    return serve_app(stock_app_of(states, enable_supernode_auth=enable_supernode_auth), states)


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serve()


@pytest.fixture(params=TRANSPORTS)
def any_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each transport."""
    yield from serve_by(request.param)


@pytest.fixture(params=TRANSPORTS)
def strict_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each transport that admits registered keys only."""
    yield from serve_by(request.param, enable_supernode_auth=True)


@pytest.fixture
def world(server: Server) -> "World":
    """A run on the SuperLink, and its grid."""
    from tests.flower.runtime_api import World

    return World(server)
