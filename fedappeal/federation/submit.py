"""Runs on a SuperLink: build the bundle, submit it, ask how it is doing, stop it.

Flower starts a run from a FAB (Flower App Bundle), a zip of the app. Ours carries settings and no code:
``flwr-serverapp`` puts the unpacked bundle in front of ``sys.path`` and imports ``server.app``, so with no
``server`` package in the bundle it finds the installed one. A client reads its settings from the same bundle.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import tomli_w
from flwr.cli.build import build_fab_from_files
from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedappeal import __version__
from fedappeal.protocol.config import Scalar

PUBLISHER = "fedappeal"
_FLOWER = "flwr>=1.39,<1.40"
_FLOWER_TARGET = "1.39.0"
# fab-format-version = 1 insists on a license file inside the bundle.
_LICENSE = b"Settings of one run. The code that runs is the installed fedappeal package, under its own license.\n"


class SubmitError(RuntimeError):
    """The SuperLink did not do what was asked; the message is one line for a person to read."""


@dataclass(frozen=True)
class RunStatus:
    """How a run is doing, in Flower's words.

    Attributes:
        status: ``pending``, ``starting``, ``running`` or ``finished``.
        sub_status: ``completed``, ``failed`` or ``stopped`` once finished, else empty.
        details: why it failed, where it did.
    """

    status: str
    sub_status: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether the run has ended, however it did."""
        return self.status == "finished"

    @property
    def completed(self) -> bool:
        """Whether the run has ended well."""
        return self.finished and self.sub_status == "completed"


def build_fab(
    config: Mapping[str, Scalar],
    serverapp: str = "server.app:app",
    clientapp: str = "client.app:app",
    *,
    version: str = __version__,
) -> bytes:
    """Build a bundle in memory that holds a run's settings and names its apps.

    Args:
        config: the run configuration, scalars under flat keys (``[tool.flwr.app.config]``).
        serverapp: ``module:attribute`` of the ServerApp, importable where the SuperLink runs.
        clientapp: the same for stock SuperNodes; the long-lived client runs its own installed app.
        version: the bundle's version; another one than the client's is refused by the client.

    Returns:
        The bundle's bytes, the same for the same arguments.

    Raises:
        ValueError: if Flower refuses the settings.
    """
    project: dict[str, Any] = {
        "project": {
            "name": "fedappeal",
            "version": version,
            "description": "Settings of one fedappeal run",
            "license": {"file": "LICENSE"},
            "dependencies": [_FLOWER],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": PUBLISHER,
                    "fab-format-version": 1,
                    "flwr-version-target": _FLOWER_TARGET,
                    "components": {"serverapp": serverapp, "clientapp": clientapp},
                    "config": dict(config),
                }
            }
        },
    }
    files = {"pyproject.toml": tomli_w.dumps(project).encode(), "LICENSE": _LICENSE}
    return build_fab_from_files(files)[0]


def submit(
    control_address: str,
    fab: bytes,
    override_config: Mapping[str, Scalar] | None = None,
    *,
    root_certificates: bytes | None = None,
) -> int:
    """Start a run.

    Args:
        control_address: ``HOST:PORT`` of the SuperLink's Control API (HTTP).
        fab: the bundle, see `build_fab`.
        override_config: settings that differ from the bundle's; the keys must exist there.
        root_certificates: CA certificate (PEM) where the SuperLink uses TLS; None: plaintext.

    Returns:
        The run's id.

    Raises:
        SubmitError: if the SuperLink is not reachable or refuses.
    """
    request = StartRunRequest(
        fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
        override_config=user_config_to_proto(dict(override_config or {})),
    )
    with _control(control_address, root_certificates) as client:
        response = client.StartRun(request)
    if not response.HasField("run_id"):
        raise SubmitError(f"the SuperLink at {control_address} did not start the run (its log says why)")
    return int(response.run_id)


def run_status(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> RunStatus:
    """Ask how a run is doing; arguments and errors as in `submit`."""
    with _control(control_address, root_certificates) as client:
        response = client.ListRuns(ListRunsRequest(run_id=run_id))
    if run_id not in response.run_dict:
        raise SubmitError(f"the SuperLink at {control_address} knows no run {run_id}")
    status = response.run_dict[run_id].status
    return RunStatus(status.status, status.sub_status, status.details)


def stop_run(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> bool:
    """Stop a run; False if it had already ended. Arguments and errors as in `submit`."""
    if run_status(control_address, run_id, root_certificates=root_certificates).finished:
        return False
    with _control(control_address, root_certificates) as client:
        return bool(client.StopRun(StopRunRequest(run_id=run_id)).success)


@contextmanager
def _control(address: str, root_certificates: bytes | None) -> Iterator[ControlHttpClient]:
    client = ControlHttpClient.from_server_address(
        server_address=address,
        insecure=root_certificates is None,
        root_certificates=root_certificates,
        interceptors=[CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    except httpx.HTTPStatusError as error:
        raise SubmitError(f"the SuperLink at {address} refused: {_reason(error.response)}") from None
    except httpx.HTTPError as error:
        raise SubmitError(f"the SuperLink at {address} is not reachable: {error}") from None
    finally:
        client.close()


def _reason(response: httpx.Response) -> str:
    """Return what a refusal says, in one line."""
    if known := FlowerError.from_json(response.text):
        text = " ".join(part for part in (known.message, known.public_details) if part)
    else:
        text = response.text
    return " ".join(text.split())[:500] or f"HTTP status {response.status_code}"
