"""Runs on a SuperLink: build the bundle, submit it, ask how it is doing, stop it.

Flower starts a run from a bundle. Ours carries settings and no code: the SuperLink imports the ServerApp that the
bundle names, and with no ``server`` package in the bundle it finds the installed one. A client reads its settings
from the same bundle.
"""

from collections.abc import Mapping

from fedappeal.flower import bundle
from fedappeal.flower.control import RunStatus, control
from fedappeal.settings.config import Scalar
from fedappeal.system.versions import FEDAPPEAL

SERVER_APP = "server.app:app"
CLIENT_APP = "client.app:app"
_LICENSE = "Settings of one run. The code that runs is the installed fedappeal package, under its own license.\n"


def build_fab(
    config: Mapping[str, Scalar],
    serverapp: str = SERVER_APP,
    clientapp: str = CLIENT_APP,
    *,
    version: str = FEDAPPEAL,
) -> bytes:
    """Build a bundle in memory that holds a run's settings and names its apps.

    Args:
        config: the run configuration (``[tool.flwr.app.config]``), scalars; a dot in a key stands for a table.
        serverapp: ``module:attribute`` of the ServerApp, importable where the SuperLink runs.
        clientapp: the same for stock SuperNodes; the long-lived client runs its own installed app.
        version: the bundle's version, for information.

    Returns:
        The bundle's bytes, the same for the same arguments.

    Raises:
        ValueError: if Flower refuses the settings.
    """
    project = bundle.Project("fedappeal", version, "Settings of one fedappeal run", _LICENSE)
    return bundle.build(project, config, serverapp=serverapp, clientapp=clientapp)


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
        ControlError: if the SuperLink is not reachable or refuses.
    """
    with control(control_address, root_certificates) as superlink:
        return superlink.start_run(fab, override_config or {})


def run_status(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> RunStatus:
    """Return how a run is doing; arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return superlink.run_status(run_id)


def stop_run(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> bool:
    """Stop a run; False if it had already ended. Arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return not superlink.run_status(run_id).finished and superlink.stop_run(run_id)
