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

    from fedappeal.cli.option_groups import PageOptions, ResidentOptions
    from fedappeal.views.live.view import View
    from fedappeal.views.metrics.serving import MetricsPort
    from fedappeal.web.serving import PagePlace


SUPERLINK_FOLDER = "FEDAPPEAL_SUPERLINK_FOLDER"
"""Environment variable: the working folder of the SuperLink that started this page."""
RUNS_OUTSIDE = "FEDAPPEAL_RUNS_OUTSIDE"
"""Environment variable: what the folder of runs is called outside of the page's container."""
ADDRESS = "page-address"
"""The file of a run's folder with the page's address, while it is served."""


@contextmanager
def shown_page(view: "View", place: "PagePlace", console: Console, folder: Path | None) -> Iterator[None]:
    """Serve a live page until the `with` ends, and say where.

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
        say(console, "the live page: ", (page.url, "bold"), whole=True)
        if folder is not None:
            replace_file(folder / ADDRESS, f"{page.url}\n".encode(), durable=False, mode=0o600)
        try:
            yield
        finally:
            if folder is not None:
                (folder / ADDRESS).unlink(missing_ok=True)


def watch(
    run: Path | None, superlink: str, root_certificates: str, options: "PageOptions", resident: "ResidentOptions"
) -> None:
    """Serve a live page until Ctrl-C.

    Args:
        run: the run's folder; None: the SuperLink's runs, the latest first.
        superlink: ``HOST:PORT`` of its Control API; empty: only the folder is read.
        root_certificates: file of its CA certificate; empty: plaintext.
        options: where the page stands.
        resident: what it can do besides.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
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

    remote = None
    actions = ForeignRun()
    if superlink:
        from fedappeal.federation.remote import RemoteSuperLink

        remote = RemoteSuperLink.checked(superlink, root_certificates)
        logging.getLogger("flwr").setLevel(logging.ERROR)  # the page says itself when the SuperLink does not answer
        actions = SubmittedRun(remote, resident.runs, tuple(resident.allow or ()))
    console = Console(highlight=False)
    root = Path(folder) if (folder := os.environ.get(SUPERLINK_FOLDER)) else None
    outside = os.environ.get(RUNS_OUTSIDE, "") if resident.runs else ""
    runs_as = (str(resident.runs), outside.rstrip("/")) if outside else ("", "")
    view = View(actions, run.absolute() if run else None, remote, root=root, runs_as=runs_as)

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
    arguments: Sequence[str], options: "PageOptions", resident: "ResidentOptions", *, resumes: bool = False
) -> Iterator[None]:
    """Serve a SuperLink's page and metrics from another process during the block.

    The SuperLink does not end with that process, which is started again where it ends.

    Args:
        arguments: of `flower-superlink`.
        options: where the page stands.
        resident: what it can do besides.
        resumes: whether the SuperLink itself continues runs, too.

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
    words = ["watch", "--superlink", ports.control, "--page", options.page or "0"]
    words += ["--root-certificates", ports.ca] if ports.ca else []
    words += ["--page-published", options.page_published] if options.page_published else []
    words += ["--metrics-port", str(metrics.port), "--metrics-address", metrics.address]
    words += ["--runs", str(resident.runs)] if resident.runs else []
    command = [sys.executable, "-P", "-m", "fedappeal.cli.main", *words, *allow_options(resident.allow or ())]
    environment = {**os.environ, SUPERLINK_FOLDER: os.getcwd()}
    with keep_running(command, environment, lambda why: complain(f"the page's process: {why}")):
        yield
