"""A federation of real client processes on this machine: SuperLink, clients, one run, and the end of them all."""

import contextlib
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fedappeal.federation.clients import ClientProcesses, ClientsEnded
from fedappeal.federation.superlink import SuperLink, SuperLinkError
from fedappeal.record.files import INITIAL
from fedappeal.record.folder import RunFolder
from fedappeal.record.follower import Watch, WatchedRun
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.process_end import end_as_interrupt
from fedappeal.system.socket_owner import NotTold, is_told
from fedappeal.tasks.files.data_files import DATA_DIR, DEFAULT_DATA_DIR

_POLL = 0.1
_STATUS_EVERY = 2.0


class LocalRunError(RuntimeError):
    """The run did not finish; the message is one line."""


def run_local(
    config: RunConfig,
    folder: RunFolder,
    watch: Watch,
    begun: Callable[[str], None] = lambda control_address: None,
    *,
    port: int = 0,
    data_dir: str = "",
    device: str = "auto",
) -> None:
    """Run a federation of client processes on loopback until the run has finished.

    Args:
        config: the run's settings.
        folder: the run's folder; the run continues from a checkpoint in it.
        watch: told what happens.
        begun: told ``HOST:PORT`` of the SuperLink's Control API, once the run is submitted.
        port: port of the SuperLink's Fleet API; 0: the system picks one.
        data_dir: folder with the data sets.
        device: where the clients train.

    Raises:
        LocalRunError: if the run failed. All processes that were started have ended when this returns or raises.
    """
    path = folder.path
    environment = {DATA_DIR: str(Path(data_dir or DEFAULT_DATA_DIR).absolute())}
    superlink = SuperLink(path / "logs", fleet_port=port, environment=environment)
    clients = ClientProcesses(
        config,
        initial=path / INITIAL,
        states=path / "clients",
        logs=path / "logs",
        data_dir=data_dir,
        device=device,
    )
    # The folder was made before: the ServerApp opens it, and continues from a checkpoint.
    settings = config.model_copy(
        update={"out": str(path), "resume": True, "initial_model": str((path / INITIAL).absolute())}
    )
    follower = WatchedRun(path, watch)
    with ExitStack() as stack:
        stack.enter_context(end_as_interrupt())
        # Ended in the opposite order: the clients say goodbye to a SuperLink that still runs.
        stack.callback(superlink.stop)
        stack.callback(clients.end)
        try:
            clients.start()
            superlink.start()
            clients.connect(superlink.fleet_address)
            clients.wait_until_loaded()
            _submit_and_follow(superlink, clients, settings, follower, begun)
        except (ClientsEnded, SuperLinkError) as error:
            raise LocalRunError(str(error)) from None
        except KeyboardInterrupt:
            superlink.kill()  # first here: its ServerApp would record a round whose clients have just been ended
            raise


def _submit_and_follow(
    superlink: SuperLink,
    clients: ClientProcesses,
    settings: RunConfig,
    follower: WatchedRun,
    begun: Callable[[str], None],
) -> None:
    # Importing Flower takes a second, in which the processes above are already starting.
    from fedappeal.federation.submit import build_fab, run_status, submit
    from fedappeal.flower.control import ControlError

    try:
        run_id = submit(superlink.control_address, build_fab(settings.as_config()))
        begun(superlink.control_address)
        next_status = time.monotonic() + _STATUS_EVERY
        while not follower.finished:
            status = None
            if time.monotonic() >= next_status:
                status = run_status(superlink.control_address, run_id)
                next_status = time.monotonic() + _STATUS_EVERY
            # Lines are read after the status: what a finished run wrote is all there.
            follower.read()
            if follower.failed or (status and status.finished and not follower.finished):
                reason = follower.failed or (status and (status.details or status.sub_status))
                raise LocalRunError(f"the run failed: {reason} (logs: {superlink.log_file.parent})")
            clients.check()
            if not superlink.alive:
                raise LocalRunError(f"the SuperLink ended; see {superlink.log_file}")
            time.sleep(_POLL)
    except ControlError as error:
        raise LocalRunError(str(error)) from None


def check_guarded() -> None:
    """Check that other users of this machine can be kept out, where its system can say whose a connection is.

    Raises:
        ConfigError: if this is Linux and the kernel does not say.
    """
    try:
        is_told()
    except NotTold as error:
        raise ConfigError(f"the SuperLink's ports cannot be kept from other users of this machine: {error}") from None


def check_port(port: int, setting: str = "port", address: str = "127.0.0.1") -> None:
    """Check that a port is free.

    Args:
        port: the port.
        setting: what the user calls it.
        address: of this machine, as a number.

    Raises:
        ConfigError: if it is in use, or not a port.
    """
    if not 0 <= port < 65536:
        raise ConfigError(f"{setting} = {port} is not allowed: 0 (the system picks one) to 65535")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise ConfigError(f"{setting} = {port} is not allowed: {error.strerror}") from None
