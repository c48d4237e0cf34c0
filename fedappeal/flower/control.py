"""Flower's Control API: the SuperLink's HTTP port, over which runs are started and nodes registered.

A process that reaches that port can do both, so the port belongs to loopback or to a network of one's own.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TypeVar

import httpx
from flwr.app import UserConfigValue
from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
from flwr.common.constant import HEARTBEAT_PATIENCE, Status, SubStatus
from flwr.common.serde import fab_to_proto, user_config_from_proto, user_config_to_proto
from flwr.proto import control_pb2
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run as RunProto
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from fedappeal.flower.messages import known_error
from fedappeal.flower.node.proxy import proxy_of
from fedappeal.flower.node.tls import served_certificate, speaks_tls, split_address
from fedappeal.flower.proxied import heed_proxies
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.proof import client_id_of
from fedappeal.settings.model import Failure
from fedappeal.system.validity import Validity

_SHOWN = 40
"""Characters of a text that a message quotes."""
_PROBE = 3.0
"""Seconds to find out whether a server speaks TLS."""
ONLINE, UNREGISTERED = NodeStatus.ONLINE, NodeStatus.UNREGISTERED
STOPPED = SubStatus.STOPPED
_ENDS = (SubStatus.COMPLETED, SubStatus.FAILED, STOPPED, Status.FINISHED)
LISTED = ("strategy", "task", "out")
"""Settings that a run is submitted with beside its bundle: the SuperLink lists those, and not what a bundle holds."""


class ControlError(Failure):
    """The SuperLink refused, or did not answer; the message is one line.

    Attributes:
        unreachable: whether no answer came, so that asking again may help.
    """

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class KeyInUse(ControlError):
    """A key is already known to the SuperLink."""


@dataclass(frozen=True)
class Listed:
    """A row of a SuperLink's list."""

    def as_dict(self) -> dict[str, str]:
        """Return all fields as texts, but why a run failed.

        JSON's numbers, which end at 2^53, cannot hold the ids.
        """
        return {key.replace("_", "-"): str(value) for key, value in asdict(self).items() if key != "details"}


@dataclass(frozen=True)
class Node(Listed):
    """A node in the SuperLink's list.

    Attributes:
        client_id: its key's fingerprint, which the run's folder calls it by.
        node_id: the SuperLink's number of it.
        name: what it was called when it was registered.
        status: ``registered`` (never seen), ``online``, ``offline`` or ``unregistered``.
        since: since when it is so, ISO 8601.
        last_seen: when it last gave a sign of life, or went offline; ISO 8601, empty: never.
    """

    client_id: str
    node_id: int
    name: str
    status: str
    since: str
    last_seen: str


@dataclass(frozen=True)
class ListedRun(Listed):
    """A run in the SuperLink's list.

    Attributes:
        run_id: the SuperLink's number of it.
        status: ``pending``, ``starting``, ``running``, ``completed``, ``failed`` or ``stopped``.
        strategy: its strategy; empty: it was not submitted by fedappeal.
        task: its task; empty as above.
        started: when it was submitted, ISO 8601.
        ended: when it ended; empty: it has not.
        folder: its folder as the SuperLink sees it; empty where that is not known.
        details: why it failed, where it did.
    """

    run_id: int
    status: str
    strategy: str
    task: str
    started: str
    ended: str
    folder: str
    details: str = ""

    @property
    def finished(self) -> bool:
        """Whether the run has ended, in any way."""
        return self.status in _ENDS

    @property
    def completed(self) -> bool:
        """Whether the run has ended well."""
        return self.status == SubStatus.COMPLETED


Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Control:
    """A SuperLink's Control API; each call raises `ControlError` where the SuperLink is away or refuses.

    Attributes:
        address: ``HOST:PORT``.
        root_certificates: CA certificate (PEM) where the SuperLink uses TLS; None: plaintext.
    """

    address: str
    root_certificates: bytes | None = None

    def start_run(self, fab: bytes, overrides: Mapping[str, UserConfigValue]) -> int:
        """Start a run and return its id.

        Args:
            fab: the bundle.
            overrides: settings that differ from the bundle's; the keys must exist there.
        """
        request = control_pb2.StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=user_config_to_proto(dict(overrides)),
        )
        response = self._call(ControlHttpClient.StartRun, request)
        if not response.HasField("run_id"):
            raise ControlError(f"the SuperLink at {self.address} did not start the run (its log says why)")
        return int(response.run_id)

    def run_status(self, run_id: int) -> ListedRun:
        """Return how a run stands."""
        runs = self._call(ControlHttpClient.ListRuns, control_pb2.ListRunsRequest(run_id=run_id)).run_dict
        if run_id not in runs:
            raise ControlError(f"the SuperLink at {self.address} knows no run {run_id}")
        return _listed_run(runs[run_id])

    def stop_run(self, run_id: int) -> bool:
        """Stop a run; False if it had already ended, or the SuperLink did not."""
        request = control_pb2.StopRunRequest(run_id=run_id)
        return not self.run_status(run_id).finished and self._call(ControlHttpClient.StopRun, request).success

    def nodes(self) -> list[Node]:
        """Return all nodes that the SuperLink knows, unregistered ones too, in the order of registration."""
        answer = self._call(ControlHttpClient.ListNodes, control_pb2.ListNodesRequest())
        nodes = []
        for info in sorted(answer.nodes_info, key=lambda node: _moment(node.registered_at)):
            since = {
                NodeStatus.REGISTERED: info.registered_at,
                NodeStatus.ONLINE: info.last_activated_at,
                NodeStatus.OFFLINE: info.last_deactivated_at,
                NodeStatus.UNREGISTERED: info.unregistered_at,
            }.get(info.status, "")
            client_id = client_id_of(info.public_key)
            nodes.append(Node(client_id, int(info.node_id), info.name, info.status, since, _last_seen(info)))
        return nodes

    def runs(self) -> list[ListedRun]:
        """Return all runs that the SuperLink knows, in the order in which they were submitted."""
        runs = self._call(ControlHttpClient.ListRuns, control_pb2.ListRunsRequest()).run_dict.values()
        return [_listed_run(run) for run in sorted(runs, key=lambda run: _moment(run.pending_at))]

    def register_node(self, public_key: bytes, name: str) -> None:
        """Register a key (PEM); `KeyInUse` where it is known, or was unregistered once."""
        request = control_pb2.RegisterNodeRequest(public_key=public_key, name=name)
        if not self._call(ControlHttpClient.RegisterNode, request).node_id:
            raise ControlError(f"the SuperLink at {self.address} did not register {name} (its log says why)")

    def unregister_node(self, node_id: int) -> None:
        """Strike a node off: its key can never come back."""
        self._call(ControlHttpClient.UnregisterNode, control_pb2.UnregisterNodeRequest(node_id=node_id))

    def _call(self, method: Callable[[ControlHttpClient, Request], Answer], request: Request) -> Answer:
        """Make a call over a connection of its own, and return the answer."""
        heed_proxies()
        client = ControlHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.root_certificates is None,
            root_certificates=self.root_certificates,
            interceptors=[CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            return method(client, request)
        except httpx.HTTPStatusError as error:
            flower_error = known_error(error.response.text)
            in_use = flower_error is not None and flower_error.code == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE
            kind = KeyInUse if in_use else ControlError
            raise kind(f"the SuperLink at {self.address} refused: {_reason(error.response, flower_error)}") from None
        except (RecursionError, ValueError) as error:
            if isinstance(error, ValueError) and not isinstance(error.__cause__, DecodeError):
                raise
            raise ControlError(f"what listens at {self.address} is no SuperLink: its answer cannot be read") from None
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        finally:
            client.close()

    def _unreachable(self, error: httpx.HTTPError) -> ControlError:
        """Return why the SuperLink gave no answer."""
        address, has_ca = self.address, self.root_certificates is not None
        if not isinstance(error, httpx.TimeoutException):
            tls = speaks_tls(split_address(address), _PROBE)
            if tls and not has_ca:
                return ControlError(f"the SuperLink at {address} speaks TLS: give root-certificates")
            if not tls and "[SSL" in str(error):
                return ControlError(f"what listens at {address} does not speak TLS: leave root-certificates out")
            served = served_certificate(split_address(address), _PROBE) if tls else None
            if served and (fault := Validity.of(served).fault(f"the certificate of {address}")):
                return ControlError(fault, unreachable=True)
        by_proxy = ""
        with suppress(OSError):
            proxy = proxy_of(split_address(address)[0], tls=has_ca)
            by_proxy = f" by {proxy}" if proxy else ""
        why = f"the SuperLink at {address} is not reachable{by_proxy}: {printable(error)}"
        return ControlError(why, unreachable=True)


def _listed_run(run: RunProto) -> ListedRun:
    status, overrides = run.status, user_config_from_proto(run.override_config)
    strategy, task, folder = (str(overrides.get(key, "")) for key in LISTED)
    word = (status.status == Status.FINISHED and status.sub_status) or status.status
    times = run.pending_at, run.finished_at
    return ListedRun(int(run.run_id), printable(word), strategy, task, *times, folder, printable(status.details))


def _moment(text: str) -> datetime:
    """Return a moment (ISO 8601) as the SuperLink says it.

    Raises:
        ControlError: it is none.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ControlError(f"what a SuperLink says is no moment: {printable(text, _SHOWN)}") from None


def _last_seen(info: NodeInfo) -> str:
    """Return a node's last sign of life, ISO 8601; empty if never."""
    if info.status != NodeStatus.ONLINE:
        return info.last_deactivated_at
    # A heartbeat keeps a node online for HEARTBEAT_PATIENCE intervals.
    latest = info.online_until - HEARTBEAT_PATIENCE * info.heartbeat_interval
    try:
        return datetime.fromtimestamp(latest, UTC).isoformat()
    except (OverflowError, OSError, ValueError):
        raise ControlError(f"what a SuperLink says is no moment: {latest}") from None


def _reason(response: httpx.Response, error: FlowerError | None) -> str:
    """Return a refusal's reason in one line."""
    parts = (error.message, error.public_details) if error else (response.text,)
    text = " ".join(part for part in parts if part)
    return printable(" ".join(text.split())) or f"HTTP status {response.status_code}"
