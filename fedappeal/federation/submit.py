"""Runs on a SuperLink: submit one, list them, ask how one is doing, stop it."""

from collections.abc import Mapping

from fedappeal.flower.control import Run, RunStatus, control
from fedappeal.settings.config import Scalar


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
        fab: the bundle, see `fedappeal.flower.bundle.build_fab`.
        override_config: settings that differ from the bundle's; the keys must exist there.
        root_certificates: CA certificate (PEM) where the SuperLink uses TLS; None: plaintext.

    Returns:
        The run's id.

    Raises:
        ControlError: if the SuperLink is not reachable or refuses.
    """
    with control(control_address, root_certificates) as superlink:
        return superlink.start_run(fab, override_config or {})


def list_runs(control_address: str, root_certificates: bytes | None = None) -> list[Run]:
    """Return all runs in the order in which they were submitted; arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return superlink.runs()


def run_status(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> RunStatus:
    """Return how a run is doing; arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return superlink.run_status(run_id)


def stop_run(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> bool:
    """Stop a run; False if it had already ended. Arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return not superlink.run_status(run_id).finished and superlink.stop_run(run_id)
