"""Whether the SuperLink serves, asked over the gRPC health protocol; exit code 0 if it does.

python -m fedappeal.containers.health HOST:PORT
"""

import sys

import grpc  # type: ignore[import-untyped, unused-ignore]
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub


def problem(address: str, timeout: float = 3.0) -> str | None:
    """Return a server's fault in one line; None if it serves.

    Args:
        address: ``HOST:PORT`` of its gRPC health service, in plaintext.
        timeout: seconds to wait for the answer.
    """
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            status = HealthStub(channel).Check(HealthCheckRequest(), timeout=timeout).status
        except grpc.RpcError as error:
            return f"{address} does not answer: {error.code().name}"
    if status == HealthCheckResponse.SERVING:
        return None
    return f"{address} answers {HealthCheckResponse.ServingStatus.Name(status)}"


if __name__ == "__main__":
    sys.exit(problem(sys.argv[1]))
