"""`fedappeal submit`, and `fedappeal resume --superlink`: a run on a long-running SuperLink."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from client.process.heartbeat import Heartbeat
from fedappeal.cli.checks import check_initial_model
from fedappeal.cli.mend import mended_folder
from fedappeal.cli.observers import NONE, Observers, chosen_observers
from fedappeal.cli.page import NO_PAGE, PageOptions, page_of_submitted
from fedappeal.cli.unused import report_unused
from fedappeal.federation.address import check_control_address, read_root_certificates
from fedappeal.federation.connected import ConnectedClients
from fedappeal.federation.nodes import list_nodes
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.submit import CLIENT_APP
from fedappeal.flower.control import ControlError
from fedappeal.record.folder import check_new, new_path
from fedappeal.record.follower import WatchedRun
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.process_end import end_as_interrupt
from fedappeal.tasks import task_fingerprint
from fedappeal.views.metrics.serving import NOWHERE, MetricsPort
from fedappeal.views.terminal.shown import complain, say
from fedappeal.views.terminal.view import RunView
from server.build import check_settings, resume_command
from server.influence import bounded_by_default


def submit_run(
    settings: dict[str, Any],
    superlink: str,
    root_certificates: str,
    detach: bool,
    clientapp: str = "",
    track: Sequence[str] = (),
    metrics: MetricsPort = NOWHERE,
    heartbeat: str = "",
    page: PageOptions = NO_PAGE,
) -> Path:
    """Submit a new run, and wait for it unless told not to; return its folder, as the SuperLink sees it.

    Args:
        settings: the run's settings.
        superlink: ``HOST:PORT`` of the SuperLink's Control API.
        root_certificates: file of its CA certificate; empty: plaintext.
        detach: print the run's id and do not wait.
        clientapp: ``module:attribute`` of the ClientApp that stock SuperNodes run; empty: fedappeal's own.
        track: names of trackers.
        metrics: where metrics are served.
        heartbeat: file for signs of life; empty: none.
        page: the live page, while this waits.

    Raises:
        ConfigError: before anything is submitted, for a setting that is not allowed.
    """
    _check_clientapp(clientapp)
    place = page.place()
    if detach and place:
        raise ConfigError(
            f"page = '{page.page}' is not allowed with --detach: `fedappeal watch --superlink` serves it"
        )
    observers, settings = chosen_observers(track, metrics, settings)
    config, note = bounded_by_default(settings)
    config = config.model_copy(update={"out": config.out or str(new_path(config))})
    _check(config, clientapp)
    check_new(Path(config.out))
    _check_observed(observers, config, detach)
    remote = remote_superlink(superlink, root_certificates)
    if heartbeat:
        observers = replace(observers, alive=Heartbeat(Path(heartbeat).expanduser().absolute()).beat)
    with page_of_submitted(place, Path(config.out), remote, root_certificates):
        _submit(config, remote, detach, clientapp, note, observers)
    return Path(config.out)


def resume_submitted(
    config: RunConfig,
    folder: Path,
    superlink: str,
    root_certificates: str,
    detach: bool,
    observers: Observers = NONE,
) -> None:
    """Continue a run on a SuperLink that sees the same folder under the same path.

    Raises:
        ConfigError: before anything is submitted, for a setting that is not allowed.
    """
    config = config.model_copy(update={"out": str(folder), "resume": True})
    _check(config)
    _check_observed(observers, config, detach)
    remote = remote_superlink(superlink, root_certificates)
    with mended_folder(folder):
        pass  # the ServerApp takes it
    _submit(config, remote, detach, observers=observers)


def remote_superlink(superlink: str, root_certificates: str) -> RemoteSuperLink:
    """Return the SuperLink that the options name.

    Raises:
        ConfigError: if they are not allowed.
    """
    check_control_address(superlink)
    return RemoteSuperLink(superlink, read_root_certificates(root_certificates))


def registered_name(client: str, superlink: RemoteSuperLink) -> str:
    """Return a client's registered name and its id; without a name the id alone."""
    try:
        nodes = list_nodes(superlink.address, superlink.root_certificates)
    except ControlError:
        return client
    name = next((node.name for node in nodes if node.client_id == client), "")
    return f"{name} ({client})" if name else client


def _check(config: RunConfig, clientapp: str = "") -> None:
    """Check what this machine can: data and foreign tasks may be elsewhere; another ClientApp has its own model."""
    check_settings(config)
    if ":" not in config.task:
        task_fingerprint(config.task_settings())
        # A path is the SuperLink's; where it leads to a file here too, it is nearly always the same one.
        path = Path(config.initial_model)
        if not clientapp and path.is_absolute() and path.is_file():
            check_initial_model(config)


def _check_clientapp(named: str) -> None:
    module, _, attribute = named.partition(":")
    if named and not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"clientapp = '{named}' is not allowed: package.module:attribute of a ClientApp")


def _check_observed(observers: Observers, config: RunConfig, detach: bool) -> None:
    """Check that what looks on at the run can: it reads the run's folder, while this command waits.

    Raises:
        ConfigError: this command does not wait for the run, or does not see its folder.
    """
    for option, given in (("track", observers.trackers), ("metrics-port", observers.metrics.port)):
        if given and detach:
            raise ConfigError(f"{option} is not allowed with --detach: it needs a command that follows the run")
        if given and not Path(config.out).is_absolute():
            raise ConfigError(
                f"{option} is not allowed with out = '{config.out}': the run's folder is read here, so give its "
                "absolute path, which this machine sees too (--out)"
            )


def _submit(
    config: RunConfig,
    superlink: RemoteSuperLink,
    detach: bool,
    clientapp: str = "",
    note: str = "",
    observers: Observers = NONE,
) -> None:
    report_unused([config])
    path = Path(config.out)
    # Some clients play a partition, others bring their own data.
    view = RunView(config, path, data="", name_of=lambda client: registered_name(client, superlink), note=note)
    # A relative path starts at the SuperLink's working folder, wherever that is.
    follower = WatchedRun(path, view.watch) if path.is_absolute() else None
    try:
        run_id = superlink.submit(config, clientapp or CLIENT_APP)
    except ControlError as error:
        complain(error)
        sys.exit(1)
    if detach:
        print(run_id)
        return
    tls = ["--root-certificates", "CA"] if superlink.root_certificates else []
    where = ["--superlink", superlink.address, *tls]
    view.start(f"run {run_id} was submitted")
    try:
        connected = ConnectedClients(superlink.address, superlink.root_certificates)
        with end_as_interrupt(), observers.watch(path, connected.count):
            ended = superlink.follow(
                run_id,
                lambda status: say(view.console, f"run {run_id}: {status}"),
                follower,
                on_answer=observers.alive,
            )
            view.stop()
    except KeyboardInterrupt:
        view.stop()
        stop = f"fedappeal federation stop {run_id} {' '.join(where)}"
        complain(f"run {run_id} continues; to stop it: {stop}", prefix="")
        sys.exit(130)
    except ControlError as error:
        view.stop()
        complain(f"{error}; run {run_id} may continue")
        sys.exit(1)
    if not ended.completed:
        again = f"; continue with: {resume_command(config, path, *where)}" if path.is_absolute() else ""
        complain(f"run {run_id}: {ended.reason} (its folder: {path}){again}")
        sys.exit(1)
    if view.rounds:
        view.summary()
    else:
        say(view.console, f"run {run_id} has completed; its folder on the SuperLink's machine: {path}")
