"""What fedappeal.flower.processes relies on: variables that Flower reads, and its log's word for a taken port."""

import socket
from collections.abc import Iterator

import pytest
import uvicorn
from flwr.proto.fleet_pb2_grpc import add_FleetServicer_to_server
from flwr.supercore import constant, telemetry
from flwr.supercore.grpc import generic_create_grpc_server

from fedappeal.flower.processes import QUIET, port_is_taken


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


def test_flower_reads_these_variables() -> None:
    assert set(QUIET) == {"FLWR_TELEMETRY_ENABLED", constant.FLWR_DISABLE_UPDATE_CHECK}
    assert hasattr(telemetry, "FLWR_TELEMETRY_ENABLED")


def test_a_taken_port_of_the_fleet_api_is_recognised(taken: int) -> None:
    with pytest.raises(SystemExit) as ended:
        generic_create_grpc_server((None, add_FleetServicer_to_server), f"127.0.0.1:{taken}")
    assert port_is_taken(str(ended.value).encode())


def test_a_taken_port_of_the_http_server_is_recognised(taken: int, caplog: pytest.LogCaptureFixture) -> None:
    """Flower serves HTTP by uvicorn, whose log says it."""

    async def nothing(scope: object, receive: object, send: object) -> None:
        pass

    server = uvicorn.Server(uvicorn.Config(nothing, port=taken, lifespan="off", log_config=None, interface="asgi3"))
    with pytest.raises(SystemExit):
        server.run()
    assert port_is_taken(caplog.text.encode())
    assert not port_is_taken(b"INFO: Starting Flower SuperLink")
