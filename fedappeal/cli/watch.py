"""`fedappeal watch`: the live page of a run or a SuperLink, served until Ctrl-C."""

import threading
from pathlib import Path

from rich.console import Console

from fedappeal.cli.page import PageOptions, shown_page
from fedappeal.settings.config import ConfigError
from fedappeal.system.process_end import end_as_interrupt
from fedappeal.views.terminal.shown import say


def watch(run: Path | None, superlink: str, root_certificates: str, options: PageOptions) -> None:
    """Serve a live page until Ctrl-C.

    Args:
        run: the run's folder; None: the SuperLink's latest run.
        superlink: ``HOST:PORT`` of its Control API; empty: only the folder is read.
        root_certificates: file of its CA certificate; empty: plaintext.
        options: where the page stands.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    from fedappeal.record.reader import Record

    if run is None and not superlink:
        raise ConfigError("run is missing: fedappeal watch RUN, or fedappeal watch --superlink HOST:PORT")
    if root_certificates and not superlink:
        raise ConfigError(f"root-certificates = '{root_certificates}' is not allowed without --superlink")
    if run is not None:
        Record(run).check()
    place = options.place
    assert place is not None  # the option has a default

    from fedappeal.views.live.actions import Actions, ForeignRun, SubmittedRun
    from fedappeal.views.live.view import View

    remote = None
    actions: Actions = ForeignRun()
    if superlink:
        from fedappeal.runs.launch.remote import remote_superlink

        remote = remote_superlink(superlink, root_certificates)
        actions = SubmittedRun(remote, root_certificates)
    console = Console(highlight=False)
    view = View(actions, run.absolute() if run else None, remote)
    with shown_page(view, place, console, None):
        say(console, "Ctrl-C ends the page; the run continues without it")
        try:
            with end_as_interrupt():
                threading.Event().wait()
        except KeyboardInterrupt:
            return
