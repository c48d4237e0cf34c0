"""Flower's SuperLink in this process: who may come in, what guards its Fleet API, and what it starts.

Everything that stands before Flower's own code is put in its place here, and nowhere else.
"""

import os
import resource
import socket
import subprocess
import sys
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import uvicorn
from fastapi import APIRouter
from flwr.superlink import extensions
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from fedappeal.flower.node.proxy import is_loopback
from fedappeal.flower.node.tls import split_address
from fedappeal.flower.processes import replace_name
from fedappeal.flower.superlink.connections import make_grpc_server, serve_http
from fedappeal.flower.superlink.fleet_app import FleetApp
from fedappeal.flower.superlink.guarded_fleet import guard_fleet_api
from fedappeal.flower.superlink.object_store import keep_objects_in_memory
from fedappeal.flower.superlink.runtime_fast_path import RuntimeFastPath
from fedappeal.flower.superlink.same_user import SameUserOnly
from fedappeal.flower.superlink.superexec import SuperExec
from fedappeal.flower.versions import FLEET_OVER_GRPC, SUPERNODE_SPEAKS_HTTP, serve_fleet_by_grpc
from fedappeal.settings.address import listener as address_listener
from fedappeal.settings.config import ConfigError
from fedappeal.system.tuning import return_freed_memory

FLEET, FLEET_HTTP = "--fleet-api-address", "--fleet-http-address"
"""Options: ``HOST:PORT`` of the Fleet API, over gRPC where Flower has it; and of the same over HTTP."""
_FLEET_ADDRESS = "0.0.0.0:9092"  # nosec B104 # Flower's default
_GRPC = "grpc-rere"
_GRPC_CONTROL = "FLWR_INTERNAL_GRPC_CONTROL_API"
"""Variable with which Flower serves its Control API a second time."""


superlink_app: Any = import_module("flwr.superlink.main")
flower: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name


@dataclass(frozen=True)
class Ports:
    """The ports in the options of `flower-superlink`.

    Attributes:
        host: where the Control and Runtime APIs listen.
        fleet: ``HOST:PORT`` of the Fleet API; empty: there is none (simulation).
        keys_only: whether the Fleet API admits registered keys only.
        control: ``HOST:PORT`` of the Control API.
        ca: the file of its CA certificate; empty: plaintext.
        http: ``HOST:PORT`` of the Fleet API over HTTP; empty: it is served over gRPC alone.
        tls: the files of its certificate and private key; empty: plaintext.
        for_flower: the options without those that are not Flower's.
        database: the file of the database; None: runs and nodes are kept in memory, or in another kind of database.
    """

    host: str
    fleet: str
    keys_only: bool
    control: str = ""
    ca: str = ""
    http: str = ""
    tls: tuple[str, ...] = ()
    for_flower: tuple[str, ...] = ()
    database: Path | None = None

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "Ports":
        """Return the ports of the command line, read as Flower does.

        Raises:
            ConfigError: options that are none, or a transport that no interceptor stands before.
        """
        http_parser, parser = _parsers()
        of_http, for_flower = http_parser.parse_known_args(arguments)
        options = parser.parse_args(for_flower)
        if FLEET_OVER_GRPC and options.fleet_api_type != _GRPC:
            raise ConfigError(
                f"fleet-api-type = '{options.fleet_api_type}' is not allowed: {_GRPC}, which is what clients of "
                "fedappeal speak"
            )
        if options.insecure and options.enable_supernode_auth:
            raise ConfigError("insecure is not allowed with enable-supernode-auth: keys are checked over TLS alone")
        address = (options if FLEET_OVER_GRPC else of_http).fleet_api_address
        fleet = "" if options.simulation else address or _FLEET_ADDRESS
        host = f"[{options.host}]" if ":" in options.host else options.host
        files = options.ssl_ca_certfile, options.ssl_certfile, options.ssl_keyfile
        ca, *tls = ("" if options.insecure else name or "" for name in files)
        if of_http.fleet_http_address and options.simulation:
            raise ConfigError(f"{FLEET_HTTP[2:]} is not allowed with simulation, which has no Fleet API")
        seen = options.host, fleet, options.enable_supernode_auth, f"{host}:{options.port}", ca
        kept = options.database != parser.get_default("database") and "://" not in options.database
        database = Path(options.database) if kept else None
        return cls(*seen, of_http.fleet_http_address, tuple(tls), tuple(for_flower), database)

    @property
    def by_option(self) -> dict[str, str]:
        """Each address by the option that names it; empty: nothing listens."""
        return {"port": self.control, FLEET[2:]: self.fleet, FLEET_HTTP[2:]: self.http}

    def is_own(self, fleet: str) -> bool:
        """Whether a Fleet API port is for one user: on loopback, without keys."""
        return bool(fleet) and is_loopback(fleet.rpartition(":")[0]) and not self.keys_only

    def listen(self) -> dict[str, socket.socket]:
        """Return a bound socket for each address of the Fleet API over HTTP.

        Raises:
            ConfigError: if that is not possible.
        """
        bound: dict[str, socket.socket] = {}
        if self.fleet:
            bound[self.fleet] = listener(self.fleet, FLEET[2:])
            if FLEET_OVER_GRPC:
                bound.pop(self.fleet).close()  # gRPC itself would end in a traceback
        return bound | ({self.http: listener(self.http, FLEET_HTTP[2:])} if self.http else {})


def listener(address: str, setting: str) -> socket.socket:
    """Return a socket that is bound to an address; ConfigError if that is not possible."""
    try:
        host, port = split_address(address)
    except ValueError:
        raise ConfigError(f"{setting} = '{address}' is not allowed: HOST:PORT") from None
    return address_listener(host, port, setting, address)


def _parsers() -> tuple[Any, Any]:
    """Return the parsers of the option that is not Flower's, and of Flower's."""
    http_parser: Any = ArgumentParser(add_help=False, allow_abbrev=False)
    http_parser.add_argument(FLEET_HTTP, default="", help="HOST:PORT: serve the Fleet API over HTTP, too")
    if not FLEET_OVER_GRPC:
        http_parser.add_argument(FLEET, default="", help="HOST:PORT of the Fleet API")
    parser = flower._parse_args_run_superlink()
    for name in _NOT_HERE & parser._option_string_actions.keys():
        action = parser._option_string_actions.pop(name)
        action.container._remove_action(action)
    parser.error = http_parser.error = _refuse
    return http_parser, parser


_NOT_HERE = {"--auth-list-public-keys", "--control-api-address", "--allow-runtime-dependency-installation"}
"""Options of Flower's that have no effect here."""


def superlink_actions() -> list[Action]:
    """Return the options of a SuperLink that help shows, besides help and version."""
    actions = [action for parser in _parsers() for action in parser._actions]
    return [action for action in actions if SUPPRESS not in (action.default, action.help)]


def given_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options that a command line gives, by name.

    Errors are those of `Ports.of`.
    """
    http_parser, parser = _parsers()
    for action in (*http_parser._actions, *parser._actions):
        action.default = SUPPRESS
    of_http, for_flower = http_parser.parse_known_args(arguments)
    given = {**vars(of_http), **vars(parser.parse_args(for_flower))}
    return {
        action.option_strings[0].lstrip("-"): True if action.nargs == 0 else given[action.dest]
        for action in superlink_actions()
        if action.dest in given and (action.nargs != 0 or action.const == given[action.dest])
    }


def _refuse(message: str) -> None:
    raise ConfigError(f"{message} (fedappeal superlink --help)")


def run_superlink(ports: Ports, *, guarded: bool) -> None:
    """Run the SuperLink.

    Args:
        ports: those of its options.
        guarded: whether the Control and Runtime APIs serve processes of this user only, and the Fleet API too where
            it is on loopback and asks for no key.

    Raises:
        ConfigError: options that cannot be guarded; before anything is started.
    """
    return_freed_memory()
    if guarded and not is_loopback(ports.host):
        raise ConfigError(
            f"host = '{ports.host}' is not allowed: 127.0.0.1 or ::1, because a program that reaches this port can "
            "run code"
        )
    os.environ.pop(_GRPC_CONTROL, None)
    serve_fleet_by_grpc()
    if guarded:
        replace_name(flower, "uvicorn", SimpleNamespace(run=partial(uvicorn.run, proxy_headers=False)))
    before = [Middleware(SameUserOnly)] if guarded else []
    middleware = extensions.get_middleware
    replace_name(extensions, "get_middleware", lambda: (*before, *middleware(), Middleware(RuntimeFastPath)))
    if SUPERNODE_SPEAKS_HTTP:  # else this port would serve the Fleet API, too, without bounds
        replace_name(superlink_app, "fleet_router", APIRouter())
    allow_open_files()
    listeners = ports.listen()

    def serve(*fleet: Any) -> None:
        for address, listener in listeners.items():
            _serve_http(listener, ports.tls, guarded and ports.is_own(address), *fleet)

    for_one_user = ports.fleet if guarded and ports.is_own(ports.fleet) else ""
    guard_fleet_api(serve if listeners else None, for_one_user, ports.keys_only)
    if FLEET_OVER_GRPC:
        # Flower's module alone sees it, and what else in this process makes a server does not.
        bounded = {**vars(grpc), "server": partial(make_grpc_server, grpc.server)}
        replace_name(import_module("flwr.supercore.grpc"), "grpc", SimpleNamespace(**bounded))
    keep_objects_in_memory()
    processes = SimpleNamespace(Popen=SuperExec, TimeoutExpired=subprocess.TimeoutExpired)
    replace_name(flower, "subprocess", processes)
    sys.argv = ["flower-superlink", *ports.for_flower]
    flower.flower_superlink()


def allow_open_files() -> None:
    """Raise this process's limit of open files to the system's maximum.

    Each client's connection is one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS says that there is no limit, and then does not take it
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _serve_http(listener: socket.socket, tls: Iterable[str], for_one_user: bool, *fleet: Any) -> None:
    app: ASGIApp = FleetApp(*fleet)
    serve_http(SameUserOnly(app, "Fleet port") if for_one_user else app, listener, *tls)
