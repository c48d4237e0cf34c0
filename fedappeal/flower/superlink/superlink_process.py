"""Flower's SuperLink in this process: who may come in, what guards its Fleet API, and what it starts.

Everything that stands before Flower's own code is put in its place here, and nowhere else.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import uvicorn
from flwr.common.constant import (
    FLEET_API_GRPC_RERE_DEFAULT_ADDRESS,
    FLWR_INTERNAL_GRPC_CONTROL_API,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.superlink import extensions
from starlette.middleware import Middleware

from fedappeal.flower.processes import replace_name
from fedappeal.flower.superlink.doors import OwnUserInterceptor, OwnUserOnly, is_loopback
from fedappeal.flower.superlink.guarded_fleet import guard_fleet_api
from fedappeal.flower.superlink.spared_sql import spare_superlink
from fedappeal.flower.superlink.superexec import SuperExec
from fedappeal.settings.config import ConfigError
from fedappeal.system.tuning import return_freed_memory

flower: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name


@dataclass(frozen=True)
class Ports:
    """What the options of `flower-superlink` say of its ports.

    Attributes:
        host: where the Control and Runtime APIs listen.
        fleet: ``HOST:PORT`` of the Fleet API; empty: there is none (simulation).
        keys_only: whether the Fleet API admits registered keys only.
        control: ``HOST:PORT`` of the Control API.
        ca: the file of its CA certificate; empty: plaintext.
    """

    host: str
    fleet: str
    keys_only: bool
    control: str = ""
    ca: str = ""

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "Ports":
        """Read the options as Flower does.

        Raises:
            ConfigError: options that are none, or a transport that no interceptor stands before.
        """
        parser = flower._parse_args_run_superlink()
        parser.error = _refuse
        options = parser.parse_args(list(arguments))
        if options.fleet_api_type != TRANSPORT_TYPE_GRPC_RERE:
            raise ConfigError(
                f"fleet-api-type = '{options.fleet_api_type}' is not allowed: {TRANSPORT_TYPE_GRPC_RERE}, which is "
                "what clients of fedappeal speak"
            )
        fleet = "" if options.simulation else options.fleet_api_address or FLEET_API_GRPC_RERE_DEFAULT_ADDRESS
        own = f"[{options.host}]" if ":" in options.host else options.host
        control, ca = f"{own}:{options.port}", "" if options.insecure else options.ssl_ca_certfile or ""
        return cls(options.host, fleet, options.enable_supernode_auth, control, ca)

    @property
    def fleet_is_own(self) -> bool:
        """Whether the Fleet API is for one user too: on loopback, where no key is asked for."""
        return bool(self.fleet) and is_loopback(self.fleet.rpartition(":")[0]) and not self.keys_only


def _refuse(message: str) -> None:
    raise ConfigError(f"{message} (fedappeal superlink --help)")


def run_superlink(arguments: Sequence[str], *, guarded: bool) -> None:
    """Be the SuperLink.

    Args:
        arguments: options of `flower-superlink`.
        guarded: whether the Control and Runtime APIs serve processes of this user only, and the Fleet API too where
            it is on loopback and asks for no key.

    Raises:
        ConfigError: options that cannot be guarded; before anything is started.
    """
    ports = Ports.of(arguments)
    return_freed_memory()
    if guarded and not is_loopback(ports.host):
        raise ConfigError(
            f"host = '{ports.host}' is not allowed: 127.0.0.1 or ::1, because a program that reaches this port can "
            "run code"
        )
    os.environ.pop(FLWR_INTERNAL_GRPC_CONTROL_API, None)  # a second Control API, by gRPC
    if guarded:
        replace_name(flower, "uvicorn", SimpleNamespace(run=partial(uvicorn.run, proxy_headers=False)))
        middleware = extensions.get_middleware
        replace_name(extensions, "get_middleware", lambda: (Middleware(OwnUserOnly), *middleware()))
    allow_open_files()
    guard_fleet_api()
    spare_superlink()
    if guarded and ports.fleet_is_own:
        replace_name(flower, "_run_fleet_api_grpc_rere", _behind_door(ports.fleet))
    processes = SimpleNamespace(Popen=SuperExec, TimeoutExpired=subprocess.TimeoutExpired)
    replace_name(flower, "subprocess", processes)
    sys.argv = ["flower-superlink", *arguments]
    flower.flower_superlink()


def allow_open_files() -> None:
    """Let this process have as many open files as the system lets it: each client's connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS says that there is no limit, and then does not take it
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _behind_door(address: str) -> Callable[..., grpc.Server]:
    run = flower._run_fleet_api_grpc_rere

    def start(*args: Any, interceptors: Sequence[grpc.ServerInterceptor] | None = None, **named: Any) -> grpc.Server:
        return run(*args, interceptors=[OwnUserInterceptor(address), *(interceptors or [])], **named)

    return start
