"""Another user of this machine, in a process of its own: attacks a SuperLink's ports, and prints what came of it.

    python tests/hostile/neighbour.py PLAN

The plan, JSON: ``control`` and ``fleet`` (addresses), ``run`` (a run's id), ``token`` (of its ServerApp's task),
``fab`` (hex, a bundle whose code must not run), ``friend`` (an address that a process of the owner's is connected
from), ``files`` (the owner's, to be read), ``uid``. Printed: JSON, for each attack what it got.
"""

import contextlib
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.runtime_pb2 import AcquireTaskRequest, GetNodesRequest, PullTaskInputRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fedappeal.flower.node.fleet_grpc import GrpcFleet

_TRIES = 20


def main() -> None:
    """Become the other user, and attack."""
    plan = json.loads(sys.argv[1])
    os.setgroups([])
    os.setgid(plan["uid"])
    os.setuid(plan["uid"])
    print(json.dumps({"uid": os.getuid(), **attacks(plan)}))


def attacks(plan: dict[str, Any]) -> dict[str, str]:
    """Return what each attack got: ``done ...`` where it was let in."""
    control = ControlHttpClient.from_server_address(
        server_address=plan["control"],
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    runtime = RuntimeHttpClient.from_server_address(
        server_address=plan["control"],
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
            RuntimeTokenHttpInterceptor(token=plan["token"]),
        ],
    )
    bundle = bytes.fromhex(plan["fab"])
    start = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})))
    fleet = GrpcFleet(plan["fleet"], ec.generate_private_key(ec.SECP256R1()), insecure=True, root_certificates=None)
    tried: dict[str, Callable[[], object]] = {
        # Before there is one: the owner is let in, and a task that this took would never be started.
        "claim a task": lambda: runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"])),
        "submit a run": lambda: control.StartRun(start).run_id,
        "list runs": lambda: len(control.ListRuns(ListRunsRequest()).run_dict),
        "list nodes": lambda: len(control.ListNodes(ListNodesRequest()).nodes_info),
        "read logs": lambda: next(iter(control.StreamLogs(StreamLogsRequest(run_id=plan["run"])))),
        "be the ServerApp with its token": lambda: runtime.GetNodes(GetNodesRequest()),
        "take its input with its token": lambda: runtime.PullTaskInput(PullTaskInputRequest()),
        "register a node": fleet.register,
        "go online": lambda: fleet.activate(10.0),
        "read an object": lambda: fleet.pull_objects(1, plan["run"], ["0" * 64]),
        "read the documentation": lambda: httpx.get(f"http://{plan['control']}/docs").raise_for_status().status_code,
    }
    for header in ("X-Forwarded-For", "X-Real-IP"):
        headers = {header: plan["friend"]}
        tried[f"claim an address with {header}"] = lambda headers=headers: (  # type: ignore[misc]
            httpx.get(f"http://{plan['control']}/docs", headers=headers).raise_for_status().status_code
        )
    tried["stop the run"] = lambda: control.StopRun(StopRunRequest(run_id=plan["run"])).success
    found = {name: outcome(act) for name, act in tried.items()}
    if plan["blind"]:
        request = recorded(start)
        found["submit and close"] = outcome(lambda: blind(plan["control"], request, linger=False))
        found["submit and reset"] = outcome(lambda: blind(plan["control"], request, linger=True))
        found["register and close"] = outcome(lambda: register_blindly(plan["fleet"]))
    for path in plan["files"]:
        found[f"read {path}"] = outcome(lambda path=path: listing(path))  # type: ignore[misc]
    return found


def outcome(act: Callable[[], object]) -> str:
    """Return what an attack got, or what it was told."""
    try:
        return f"done {act()}"
    except httpx.HTTPStatusError as error:
        return f"{error.response.status_code} {error.response.text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def listing(path: str) -> object:
    """Return what is in a file or a folder."""
    if os.path.isdir(path):
        return os.listdir(path)
    with open(path, "rb") as file:
        return file.read(10)


def recorded(start: StartRunRequest) -> bytes:
    """Return the bytes of a request that starts a run, as a client would send it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        client = ControlHttpClient.from_server_address(
            server_address=f"{host}:{port}",
            insecure=True,
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        threading.Thread(target=lambda: outcome(lambda: client.StartRun(start)), daemon=True).start()
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(0.3)
            parts = []
            with contextlib.suppress(TimeoutError):
                while part := connection.recv(65536):
                    parts.append(part)
    return b"".join(parts)


def blind(address: str, request: bytes, linger: bool) -> str:
    """Send a request and close at once, again and again: by the time it is looked at, no process has the socket."""
    host, _, port = address.rpartition(":")
    for _ in range(_TRIES):
        attacker = socket.create_connection((host, int(port)))
        attacker.sendall(request)
        if linger:
            time.sleep(0.002)
            attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        attacker.close()
    time.sleep(0.5)
    return "sent"


def register_blindly(address: str) -> str:
    """Ask for a node and hang up at once, again and again."""
    for number in range(_TRIES):
        with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            grpc.channel_ready_future(channel).result(5)
            signed = GrpcFleet(
                address, ec.generate_private_key(ec.SECP256R1()), insecure=True, root_certificates=None
            )
            request = RegisterNodeFleetRequest(public_key=signed._signer.public_key)
            FleetStub(channel).RegisterNode.future(request, metadata=signed._sign())
            time.sleep(0.0005 * number)
    time.sleep(0.5)
    return "sent"


if __name__ == "__main__":
    main()
