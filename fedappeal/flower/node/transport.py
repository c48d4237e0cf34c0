"""Which transport carries the Fleet API: gRPC, the only one of Flower 1.39."""

from cryptography.hazmat.primitives.asymmetric import ec

from fedappeal.flower.node.fleet import FleetApi
from fedappeal.flower.node.fleet_grpc import ALPN, GREETING, GrpcFleet, answers_greeting

__all__ = ["ALPN", "GREETING", "answers_greeting", "open_fleet"]


def open_fleet(
    address: str, key: ec.EllipticCurvePrivateKey, *, insecure: bool, root_certificates: bytes | None
) -> FleetApi:
    """Open a connection to a SuperLink's Fleet API; arguments as in `GrpcFleet`."""
    return GrpcFleet(address, key, insecure=insecure, root_certificates=root_certificates)
