"""The live page of a command: where it stands, the line that says so, and `fedappeal watch`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file
from fedappeal.system.process_end import end_as_interrupt
from fedappeal.views.terminal.shown import say

if TYPE_CHECKING:
    from fedappeal.views.live.view import View
    from fedappeal.web.serving import PagePlace


ADDRESS = "page-address"
"""The file of a run's folder with the page's address, while it is served."""


@dataclass(frozen=True)
class PageOptions:
    """What the command line says of a live page.

    Attributes:
        page: ``PORT`` or ``HOST:PORT``; empty: there is none.
        published: ``HOST:PORT`` under which browsers visit it; empty: where it listens.
    """

    page: str = ""
    published: str = ""

    @cached_property
    def place(self) -> "PagePlace | None":
        """Where the page is to stand; None: there is none.

        Raises:
            ConfigError: no page can stand there.
        """
        if not self.page:
            if self.published:
                raise ConfigError(f"page-published = '{self.published}' is not allowed without --page")
            return None
        from fedappeal.web.serving import PagePlace

        return PagePlace.parse(self.page, self.published)


NO_PAGE = PageOptions()


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
        say(console, "the live page: ", (page.url, "bold"))
        if folder is not None:
            replace_file(folder / ADDRESS, f"{page.url}\n".encode(), durable=False, mode=0o600)
        try:
            yield
        finally:
            if folder is not None:
                (folder / ADDRESS).unlink(missing_ok=True)


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
    if run is None and not superlink:
        raise ConfigError("run is missing: fedappeal watch RUN, or fedappeal watch --superlink HOST:PORT")
    if root_certificates and not superlink:
        raise ConfigError(f"root-certificates = '{root_certificates}' is not allowed without --superlink")
    if run is not None:
        Record(run).check()
    place = options.place
    assert place is not None  # the option has a default

    from fedappeal.views.live.actions import ForeignRun, SubmittedRun
    from fedappeal.views.live.view import View

    remote = None
    actions = ForeignRun()
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
