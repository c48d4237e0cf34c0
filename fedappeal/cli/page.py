"""The live page of a command: where it stands, and the line that says so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedappeal.system.private_files import write_private
from fedappeal.views.terminal.shown import say

if TYPE_CHECKING:
    from fedappeal.federation.remote import RemoteSuperLink
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

    def place(self) -> "PagePlace | None":
        """Return where the page is to stand; None: there is none.

        Raises:
            ConfigError: no page can stand there.
        """
        from fedappeal.settings.config import ConfigError

        if not self.page:
            if self.published:
                raise ConfigError(f"page-published = '{self.published}' is not allowed without --page")
            return None
        from fedappeal.web.serving import PagePlace

        return PagePlace.parse(self.page, self.published)


NO_PAGE = PageOptions()


@contextmanager
def page_of_local(place: "PagePlace | None", folder: Path, console: Console) -> Iterator[Callable[[str], None]]:
    """Serve the page of this process's own run, where it is to have one, until the `with` ends.

    Args:
        place: where it stands; None: there is none.
        folder: the run's.
        console: where the address is printed.

    Yields:
        What is to be told the address of the SuperLink's Control API.
    """
    if place is None:
        yield lambda control_address: None
        return
    from fedappeal.federation.remote import RemoteSuperLink
    from fedappeal.views.live.actions import OwnRun
    from fedappeal.views.live.view import View

    view = View(OwnRun(), folder, lists_runs=False)

    def begun(control_address: str) -> None:
        view.superlink = RemoteSuperLink(control_address)

    with shown_page(view, place, console, folder):
        yield begun


@contextmanager
def page_of_submitted(
    place: "PagePlace | None", folder: Path, superlink: "RemoteSuperLink", root_certificates: str
) -> Iterator[None]:
    """Serve the page of a run on a long-running SuperLink, where it is to have one, until the `with` ends.

    Args:
        place: where it stands; None: there is none.
        folder: the run's, as the SuperLink sees it; only an absolute path may be seen from here, too.
        superlink: the SuperLink.
        root_certificates: the file of its CA certificate; empty: plaintext.
    """
    if place is None:
        yield
        return
    from fedappeal.views.live.actions import SubmittedRun
    from fedappeal.views.live.view import View

    view = View(SubmittedRun(superlink, root_certificates), folder if folder.is_absolute() else None, superlink)
    with shown_page(view, place, Console(highlight=False), None):
        yield


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
        kept = _keep(folder, page.url)
        try:
            yield
        finally:
            if kept is not None:
                kept.unlink(missing_ok=True)


def _keep(folder: Path | None, url: str) -> Path | None:
    if folder is None:
        return None
    write_private(folder / ADDRESS, url + "\n")
    return folder / ADDRESS
