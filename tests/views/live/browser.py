"""Debian's Chromium, driven by Playwright; what a page asks of the network is taken down, and axe looks at it."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["check_accessible", "chromium", "fits", "narrow", "needs_chromium", "new_page", "picture"]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
SCREENSHOTS = os.environ.get("FEDAPPEAL_SCREENSHOTS")
"""A folder in which pictures of the pages are kept; not set: none are."""
WAIT = 60_000


@dataclass
class Visited:
    """A page in a browser.

    Attributes:
        page: Playwright's.
        requests: addresses that it asked for.
        problems: what its console and its scripts complained of.
    """

    page: "object"
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser; each page that it opens has cookies and storage of its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@contextmanager
def new_page(chromium: Any, dark: bool = False, width: int = 1400) -> Iterator[Visited]:
    """Open a page."""
    scheme = "dark" if dark else "light"
    page = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    page.set_default_timeout(WAIT)
    visited = Visited(page)
    page.on("request", lambda request: visited.requests.append(request.url))
    page.on("pageerror", lambda error: visited.problems.append(str(error)))
    page.on("dialog", lambda dialog: visited.problems.append(f"dialog: {dialog.message}"))
    page.on(
        "console",
        lambda message: visited.problems.append(message.text) if message.type in ("error", "warning") else None,
    )
    try:
        yield visited
    finally:
        page.close()


def picture(page: "object", name: str) -> None:
    """Keep a picture of a whole page, where pictures are wanted."""
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


def check_accessible(page: Any) -> None:
    """Check a page with axe: contrast, names, headings, tables, what a keyboard reaches."""
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def fits(page: Any, name: str, width: int) -> None:
    """Check that a page is accessible and no wider than it is shown, charts a moment later; keep a picture of it."""
    deadline = time.monotonic() + WAIT / 1000
    while page.evaluate("document.documentElement.scrollWidth") > width:
        assert time.monotonic() < deadline, f"{name} is wider than {width}"
        page.wait_for_timeout(50)
    check_accessible(page)
    picture(page, f"{name}-{width}")


def narrow(page: Any, name: str) -> None:
    """Go on as on a phone in the dark, where the page fits, too, with all that it folds up open."""
    folded = page.locator("details:not([open])").element_handles()
    for part in folded:
        part.evaluate("part => { part.open = true }")
    page.set_viewport_size({"width": 400, "height": 900})
    page.emulate_media(color_scheme="dark")
    fits(page, name, 400)
    for part in folded:
        part.evaluate("part => { part.open = false }")
