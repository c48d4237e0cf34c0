"""The live page of a command: where it stands, and the line that says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedappeal.system.files import replace_file
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
        from fedappeal.settings.config import ConfigError

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
        kept = _keep(folder, page.url)
        try:
            yield
        finally:
            if kept is not None:
                kept.unlink(missing_ok=True)


def _keep(folder: Path | None, url: str) -> Path | None:
    if folder is None:
        return None
    replace_file(folder / ADDRESS, f"{url}\n".encode(), durable=False, mode=0o600)
    return folder / ADDRESS
