"""The docs site, built as `make docs` builds it: each link and anchor resolves, and it asks no other host."""

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT
from tests.warm import run

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
"""By element, the attribute that a browser fetches without being asked."""


class Links(HTMLParser):
    """What a page refers to, what of it a browser loads by itself, and the ids in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets, self.loaded, self.ids = set[str](), set[str](), set[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids.update(found[name] for name in ("id", "name") if name in found)
        self.targets.update(found[name] for name in ("href", "src") if name in found)
        if tag in LOADS and LOADS[tag] in found:
            self.loaded.add(found[LOADS[tag]])


@cache
def links(file: Path) -> Links:
    return Links(file.read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", "docs/site"]
    command += ["-d", str(folder / "doctrees"), ".", str(folder / "html")]
    done = run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def broken(site: Path, page: Path) -> list[str]:
    """The links of a page that lead nowhere; of other hosts' only the form is checked."""
    found = []
    for target in links(page).targets:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            whole = parts.scheme in ("http", "https") and "." in parts.netloc and " " not in target
            good = whole or parts.scheme in ("data", "mailto")
        else:
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            file = file / "index.html" if file.is_dir() else file
            anchored = not parts.fragment or file.suffix != ".html" or unquote(parts.fragment) in links(file).ids
            good = file.is_relative_to(site) and file.is_file() and anchored
        if not good:
            found.append(f"{page.relative_to(site)}: {target}")
    return found


def test_every_link_and_anchor_resolves(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert sum(len(links(page).targets) for page in pages) > 1000
    assert [link for page in pages for link in broken(site, page)] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="index.html#here" id="here"></a><a href="#there"></a><a href="no.html"></a><a href="../x"></a>'
        '<a href="http://a b.c/"></a><a href="https://example.org/x#y"></a><a href="htp://example.org"></a>'
    )
    found = {link.partition(": ")[2] for link in broken(tmp_path, page)}
    assert found == {"#there", "no.html", "../x", "http://a b.c/", "htp://example.org"}


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = {target for page in site.rglob("*.html") for target in links(page).loaded}
    assert {target for target in loaded if urlsplit(target).netloc} == set()
    sheets = [sheet.read_text() for sheet in site.rglob("*.css")]
    assert sheets
    assert [sheet for sheet in sheets if "url(http" in sheet or "url(//" in sheet or "@import" in sheet] == []


def test_all_pages_and_the_search_are_there(site: Path) -> None:
    built = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    written = {page.relative_to(ROOT).with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert written | {"README", "CHANGELOG", "CONTRIBUTING", "index", "search"} <= built
    assert (site / "index.html").read_bytes() == (site / "README.html").read_bytes()
    index = (site / "searchindex.js").read_text()
    assert "docs/watching" in index
    assert "heat" in index
    reference = (site / "docs/site/reference.html").read_text()
    assert 'id="fedappeal.simulate"' in reference
