"""The versions of Flower that fedappeal runs on, and all that differs between them."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

OLDEST = "1.39.0"
"""Oldest version, for which bundles are made."""
SUPPORTED = "flwr>=1.39,<1.43"
"""All versions, as a requirement; `make test-newest` runs the tests on the last one."""
GRPC_FLEET = "FLWR_INTERNAL_GRPC_FLEET_API"
"""Variable with which 1.40 and later serve the Fleet API over gRPC, beside HTTP; 1.39 always does, and ignores it."""
SUPERNODE_SPEAKS_HTTP = find_spec("flwr.supernode.fleet_http_connection") is not None
"""Whether a stock SuperNode speaks HTTP, at the Control API's port, and no gRPC: from 1.40 on."""


def fleet_handlers() -> Any:
    """Return Flower's module of the Fleet API's handlers, which 1.40 moved.

    1.40 calls it for HTTP too.
    """
    moved = find_spec("flwr.superlink.servicer.fleet")
    before = "flwr.server.superlink.fleet.message_handler.message_handler"
    return import_module("flwr.superlink.servicer.fleet.fleet_handlers" if moved else before)


def serve_fleet_by_grpc() -> None:
    """Make this process's SuperLink serve the Fleet API over gRPC."""
    os.environ[GRPC_FLEET] = "1"
