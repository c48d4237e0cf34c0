"""The versions of Flower that fedappeal runs on, and all that differs between them."""

import os
import re
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

OLDEST = "1.39.0"
"""Oldest version, for which bundles are made."""
SUPPORTED = "flwr>=1.39,<1.43"
"""All versions, as a requirement; `make test-newest` runs the tests on the last one."""
GRPC_FLEET = "FLWR_INTERNAL_GRPC_FLEET_API"
"""Variable with which 1.40 and later serve the Fleet API over gRPC, beside HTTP; 1.39 always does, and ignores it."""
SUPERNODE_SPEAKS_HTTP = find_spec("flwr.supernode.fleet_http_connection") is not None
"""Whether a stock SuperNode speaks HTTP, at the Control API's port, and no gRPC: from 1.40 on."""


FLEET_OVER_GRPC = any(
    Path(folder, "server/superlink/fleet/grpc_rere").is_dir()
    for folder in getattr(find_spec("flwr"), "submodule_search_locations", ())
)
"""Whether this Flower can serve the Fleet API over gRPC; else ours is served over HTTP alone."""


def fleet_servicer() -> Any:
    """Return the class of the Fleet API's calls: Flower's for gRPC; without gRPC, one of Flower's handlers."""
    if FLEET_OVER_GRPC:
        return import_module("flwr.server.superlink.fleet.grpc_rere.fleet_servicer").FleetServicer
    from flwr.proto import fleet_pb2

    calls = {}
    for method in fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].methods:
        calls[method.name] = _call(re.sub("(?<!^)([A-Z])", r"_\1", method.name).lower())
    return type("FleetServicer", (_Servicer,), calls)


class _Servicer:
    def __init__(self, state_factory: Any, objectstore_factory: Any, enable_supernode_auth: bool) -> None:
        self.state_factory, self.objectstore_factory = state_factory, objectstore_factory
        self.enable_supernode_auth = enable_supernode_auth


def _call(name: str) -> Any:
    handler = fleet_handler(name)

    def call(self: _Servicer, request: Any, context: Any) -> Any:
        given = {"request": request, "enable_supernode_auth": self.enable_supernode_auth}
        return handler(**given, state=self.state_factory.state(), store=self.objectstore_factory.store())

    return call


def fleet_handler(name: str) -> Any:
    """Return Flower's handler of a call, which takes by name what it wants of all that handlers may want."""
    handler = getattr(fleet_handlers(), name)
    wanted = signature(handler).parameters
    return lambda **given: handler(**{key: given[key] for key in wanted})


def fleet_handlers() -> Any:
    """Return Flower's module of the Fleet API's handlers, which 1.40 moved.

    1.40 calls it for HTTP too.
    """
    moved = find_spec("flwr.superlink.servicer.fleet")
    before = "flwr.server.superlink.fleet.message_handler.message_handler"
    return import_module("flwr.superlink.servicer.fleet.fleet_handlers" if moved else before)


def serve_fleet_by_grpc() -> None:
    """Make this process's SuperLink serve the Fleet API over gRPC, where Flower can."""
    os.environ.pop(GRPC_FLEET, None)
    if FLEET_OVER_GRPC:
        os.environ[GRPC_FLEET] = "1"
