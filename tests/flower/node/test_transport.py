"""Which transport carries the Fleet API with the installed Flower."""

from importlib.metadata import version

from cryptography.hazmat.primitives.asymmetric import ec

from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.node.transport import open_fleet


def test_it_is_grpc_with_flower_1_39() -> None:
    """Flower 1.40 and later listen with HTTP only: then this choice needs a second transport."""
    fleet = open_fleet("127.0.0.1:1", ec.generate_private_key(ec.SECP256R1()), insecure=True, root_certificates=None)
    assert isinstance(fleet, GrpcFleet)
    fleet.close()
    assert version("flwr").startswith("1.39.")


def test_over_tls_a_missing_ca_means_the_systems() -> None:
    fleet = open_fleet("127.0.0.1:1", ec.generate_private_key(ec.SECP256R1()), insecure=False, root_certificates=None)
    fleet.close()
