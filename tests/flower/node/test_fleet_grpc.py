"""What is gRPC's alone of the Fleet API; the calls are in test_fleet_api."""

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server

from fedappeal.flower.node import fleet as api
from fedappeal.flower.node.fleet_grpc import GREETING, GrpcFleet, answers_greeting
from tests.flower.conftest import Server


def test_over_tls_a_missing_ca_means_the_systems() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    GrpcFleet("127.0.0.1:1", key, insecure=False, root_certificates=None).close()


def test_a_signature_of_another_key_is_refused_as_such(server: Server) -> None:
    fleet, node = server.node()
    forged = GrpcFleet(server.address, ec.generate_private_key(ec.SECP256R1()), insecure=True, root_certificates=None)
    forged._signer.public_key = fleet._signer.public_key  # type: ignore[attr-defined]
    with pytest.raises(api.NotAdmitted, match="does not admit this node: Invalid signature"):
        forged.pull(node)
    forged.close()


def test_a_server_with_too_many_calls_is_asked_again() -> None:
    server = grpc.server(ThreadPoolExecutor(1), maximum_concurrent_rpcs=0)
    add_FleetServicer_to_server(FleetServicer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    fleet = GrpcFleet(address, ec.generate_private_key(ec.SECP256R1()), insecure=True, root_certificates=None)
    with pytest.raises(api.NotAnswering):
        fleet.pull_objects(1, 1, ["x"])
    with pytest.raises(api.NotAnswering):
        fleet.pass_when_signed([0.0])
    fleet.close()
    server.stop(None)


def test_a_fleet_api_answers_the_greeting(server: Server) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(GREETING)
        assert answers_greeting(connection.recv(9))
    assert not answers_greeting(b"HTTP/1.1 400")
    assert not answers_greeting(b"")
