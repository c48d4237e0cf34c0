"""Flower's SuperLink in this process: who may come in, what guards its Fleet API, and what it starts.

Everything that stands before Flower's own code is put in its place here, and nowhere else.
"""

import ipaddress
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
from urllib.parse import unquote

import grpc  # type: ignore[import-untyped, unused-ignore]
import uvicorn
from flwr.common.constant import (
    FLEET_API_GRPC_RERE_DEFAULT_ADDRESS,
    FLWR_INTERNAL_GRPC_CONTROL_API,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.superlink import extensions
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedappeal.flower.processes import replace_name
from fedappeal.flower.superlink.guarded_fleet import guard_fleet_api
from fedappeal.flower.superlink.spared_sql import spare_superlink
from fedappeal.flower.superlink.superexec import SuperExec
from fedappeal.flower.superlink.superlink_log import Seldom
from fedappeal.flower.versions import serve_fleet_by_grpc
from fedappeal.settings.config import ConfigError
from fedappeal.system.socket_owner import Address, NotTold, peer_of
from fedappeal.system.tuning import return_freed_memory

REFUSED = "this SuperLink serves the user who started it alone"
"""What a process of another user is told."""

_RUNTIME = "/v1/runtime/"
_OF_CONTROL = ("ControlSensitiveResponseMiddleware", "ControlAuthenticationMiddleware", "ControlLicenseMiddleware")

_LOG = Seldom()


def admits(remote: Address | None, local: Address | None, port: str) -> bool:
    """Return whether the other end of a connection is a process of this process's user; a refusal is logged.

    Args:
        remote: its address; None: it has none.
        local: this end's.
        port: what the port is called.
    """
    try:
        uid = peer_of(remote, local) if remote and local else None
    except (NotTold, ValueError) as error:
        _LOG.warn(f"refused at the {port}: {error}")
        return False
    if uid != os.geteuid():
        who = "a connection that no process of this machine holds" if uid is None else f"a process of user {uid}"
        _LOG.warn(f"refused at the {port}: {who}")
        return False
    return True


class OwnUserOnly:
    """The Control and Runtime APIs for one user (ASGI): outermost, so that nothing of a request is read before.

    The server must not let headers replace the peer's address (uvicorn: ``proxy_headers=False``).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or admits(scope.get("client"), scope.get("server"), "Control port"):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(REFUSED, 403, {"connection": "close"})(scope, receive, send)


class OwnUserInterceptor(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """The Fleet API for one user (gRPC).

    Args:
        address: ``HOST:PORT`` that the server listens at, a host of loopback.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Put the question before a method of the Fleet API; it has methods of one request and one reply alone."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        if handler.unary_unary is None:
            raise TypeError(f"{handler_call_details.method} streams: nothing here can refuse it")

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            # A call whose connection has ended meanwhile is no call: its address may be another process's by now.
            if not (self._admits(context.peer()) and context.is_active()):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)
            return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)

    def _admits(self, peer: str) -> bool:
        remote = grpc_address(peer)
        if remote is None:
            return admits(None, None, "Fleet port")
        host = self._host
        if host == "localhost":
            host = "::1" if ":" in remote[0] else "127.0.0.1"
        return admits(remote, (host, self._port), "Fleet port")


def grpc_address(peer: str) -> Address | None:
    """Return the address in gRPC's words for a peer, ``ipv4:127.0.0.1:5`` or ``ipv6:%5B::1%5D:5``; None: none is."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host that a server listens at is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class OfControl:
    """A middleware of the Control API (ASGI), passed by calls of the Runtime API, which it would only hand on.

    A run makes a hundred such calls a round, and Starlette runs each of these middlewares in a task of its own.

    Args:
        middleware: Flower's.
        app: what it stands before.
    """

    def __init__(self, middleware: Callable[[ASGIApp], ASGIApp], app: ASGIApp) -> None:
        self._behind, self._app = middleware(app), app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a call on, by the middleware where it is not of the Runtime API."""
        of_runtime = scope["type"] == "http" and scope["path"].startswith(_RUNTIME)
        await (self._app if of_runtime else self._behind)(scope, receive, send)


superlink_app: Any = import_module("flwr.superlink.main")
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
    serve_fleet_by_grpc()
    if guarded:
        replace_name(flower, "uvicorn", SimpleNamespace(run=partial(uvicorn.run, proxy_headers=False)))
        middleware = extensions.get_middleware
        replace_name(extensions, "get_middleware", lambda: (Middleware(OwnUserOnly), *middleware()))
    for name in _OF_CONTROL:
        replace_name(superlink_app, name, partial(OfControl, getattr(superlink_app, name)))
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
