"""Python reads it at its start where this folder is on PYTHONPATH: fedappeal then finds a Flower without gRPC Fleet.

The files of Flower's gRPC stay: its SuperLink imports them, and serves nothing over gRPC unless it is asked to.
"""

import sys

if "client.process.sandbox" not in sys.orig_argv:  # which confines a process before anything has started a thread
    from fedappeal.flower import versions

    versions.FLEET_OVER_GRPC = False
    sys.modules["fedappeal.flower.superlink.fleet_interceptor"] = None  # type: ignore[assignment] # an import of it fails
