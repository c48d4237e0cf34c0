"""The live page of a command: where it stands, the line that says so, and `fedappeal watch`."""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedappeal.core.plugins import allow_options
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file
from fedappeal.system.keep_running import keep_running
from fedappeal.system.process_end import end_as_interrupt
from fedappeal.views.terminal.printing import complain, say

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from fedappeal.cli.option_groups import ControlOptions, PageOptions, ResidentOptions
    from fedappeal.views.live.view import View
    from fedappeal.views.metrics.serving import MetricsPort
    from fedappeal.web.serving import PagePlace


SUPERLINK_FOLDER = "FEDAPPEAL_SUPERLINK_FOLDER"
"""Environment variable: the working folder of the SuperLink that started this page."""
ADMITS_ALL = "FEDAPPEAL_SUPERLINK_ADMITS_ALL"
"""Environment variable: set where the SuperLink that started this page asks clients for no registered key."""
RUNS_OUTSIDE = "FEDAPPEAL_RUNS_OUTSIDE"
"""Environment variable: what the folder of runs is called outside of the page's container."""
ADDRESS = "page-address"
"""The file of a run's folder with the page's address, while it is served."""


@contextmanager
def shown_page(view: "View", place: "PagePlace", console: Console, folder: Path | None) -> Iterator[None]:
    """Serve a live page during the block, and print its address.

    Args:
        view: its contents.
        place: where it stands.
        console: where the line is printed.
        folder: the address is kept there, its owner's alone, where the folder can be written to; None: nowhere.

    Raises:
        ConfigError: the port has been taken meanwhile.
    """
    from fedappeal.views.live.page import live_page

    with live_page(view, place) as page:
        if folder is not None:
            replace_file(folder / ADDRESS, f"{page.url}\n".encode(), durable=False, mode=0o600)
        try:
            say(console, "the live page: ", (page.url, "bold"), whole=True)
            yield
        finally:
            if folder is not None:
                (folder / ADDRESS).unlink(missing_ok=True)


def watch(run: Path | None, control: "ControlOptions", options: "PageOptions", resident: "ResidentOptions") -> None:
    """Serve a live page until Ctrl-C.

    Args:
        run: the run's folder; None: the SuperLink's runs, the latest first.
        control: the SuperLink; without one only the folder is read.
        options: where the page stands.
        resident: what it can do besides.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    superlink, root_certificates = control.superlink, control.root_certificates
    if run is None and not superlink:
        raise ConfigError("run is missing: fedappeal watch RUN, or fedappeal watch --superlink HOST:PORT")
    if not superlink and (alone := root_certificates or resident.runs):
        name = "root-certificates" if root_certificates else "runs"
        raise ConfigError(f"{name} = '{alone}' is not allowed without --superlink")
    if run is not None:
        Record(run).check()
    place, metrics = replace(options, page=options.page or "0").place, resident_metrics(resident)
    assert place is not None

    from fedappeal.views.live.actions import ForeignRun, SubmittedRun
    from fedappeal.views.live.view import View

    remote = members = None
    actions = ForeignRun()
    if superlink:
        from fedappeal.views.live.members import Members

        remote = control.remote()
        members = Members(remote, control.folder.path if control.folder else None, ADMITS_ALL in os.environ)
        logging.getLogger("flwr").setLevel(logging.ERROR)  # the page says itself when the SuperLink does not answer
        actions = SubmittedRun(remote, resident.runs, tuple(resident.allow or ()))
    console = Console(highlight=False)
    root = Path(folder) if (folder := os.environ.get(SUPERLINK_FOLDER)) else None
    outside = os.environ.get(RUNS_OUTSIDE, "") if resident.runs else ""
    runs_as = (str(resident.runs), outside.rstrip("/")) if outside else ("", "")
    view = View(actions, run.absolute() if run else None, remote, root=root, runs_as=runs_as, members=members)

    def registry() -> "CollectorRegistry":
        from fedappeal.federation.remote import ServedCertificate
        from fedappeal.views.metrics.run_metrics import FolderMetrics
        from fedappeal.views.metrics.serving import ConnectedClients

        return FolderMetrics(view.latest_folder, ConnectedClients(remote).count, ServedCertificate(remote).validity)

    with metrics.served(registry), shown_page(view, place, console, None):
        if root is None:  # beside a SuperLink, Ctrl-C ends both
            say(console, "Ctrl-C ends the page; the run continues without it")
        try:
            with end_as_interrupt():
                threading.Event().wait()
        except KeyboardInterrupt:
            return


def resident_metrics(resident: "ResidentOptions") -> "MetricsPort":
    """Return the checked port of metrics; raises ConfigError.

    A folder of runs is checked, too.
    """
    from fedappeal.views.metrics.serving import MetricsPort

    if resident.runs is not None and not resident.runs.is_dir():
        raise ConfigError(f"runs = '{resident.runs}' is not allowed: no such folder")
    return MetricsPort(resident.metrics_port, resident.metrics_address)


@contextmanager
def resident_page(
    arguments: Sequence[str],
    options: "PageOptions",
    resident: "ResidentOptions",
    *,
    resumes: bool = False,
    federation: Path | None = None,
) -> Iterator[None]:
    """Serve a SuperLink's page and metrics from another process during the block.

    The SuperLink does not end with that process, which is started again where it ends.

    Args:
        arguments: of `flower-superlink`.
        options: where the page stands.
        resident: what it can do besides.
        resumes: whether the SuperLink itself continues runs, too.
        federation: the folder of which `fedappeal federation open` starts it; None: of none.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    metrics = resident_metrics(resident)
    if options.place is None and not metrics.port:
        if resident.runs or (resident.allow and not resumes):
            raise ConfigError("runs and allow are of the page (allow of --resume, too): give --page PORT")
        yield
        return
    from fedappeal.flower.superlink.superlink_process import Ports

    ports = Ports.of(arguments)
    where = ["--superlink", ports.control, *(["--root-certificates", ports.ca] if ports.ca else [])]
    where = ["--federation", str(federation)] if federation else where
    words = ["watch", *where, "--page", options.page or "0"]
    words += ["--page-published", options.page_published] if options.page_published else []
    words += ["--metrics-port", str(metrics.port), "--metrics-address", metrics.address]
    words += ["--runs", str(resident.runs)] if resident.runs else []
    command = [sys.executable, "-P", "-m", "fedappeal.cli.main", *words, *allow_options(resident.allow or ())]
    environment = {**os.environ, SUPERLINK_FOLDER: os.getcwd(), **({} if ports.keys_only else {ADMITS_ALL: "yes"})}
    with keep_running(command, environment, lambda why: complain(f"the page's process: {why}")):
        yield
