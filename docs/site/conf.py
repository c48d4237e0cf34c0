"""How Sphinx builds the docs site from README and docs: `make docs`."""

import shutil
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

project = "fedappeal"
html_title = project
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/bench-results/*.md",
    "docs/reproductions/*.md",
    "docs/site/*.md",
]
exclude_patterns = [".*", "site", "runs", "data", "dist", "reproductions"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # a browser refuses to read pages for it where the site is opened from a folder

SECTIONS: dict[str, str] = tomllib.loads(Path(__file__).with_name("navigation.toml").read_text("utf-8"))
"""The navigation: by heading, all pages of docs in order."""


def navigation() -> str:
    """Return the tables of contents that Sphinx builds the navigation from."""
    contents = {heading: [f"docs/{name}" for name in names.split()] for heading, names in SECTIONS.items()}
    contents["Inside"] += ["CHANGELOG", "CONTRIBUTING"]
    return "".join(
        "\n".join(["\n```{toctree}", ":hidden:", f":caption: {heading}", *names, "```\n"])
        for heading, names in contents.items()
    )


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation, which Sphinx reads off pages, to those that GitHub shows without it."""
    if page == root_doc:
        source[0] += navigation()
    if page == "docs/reproductions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n*\n```\n"


def copy_start_page(app: Sphinx, error: Exception | None) -> None:
    """Put the README's page where a browser looks for a folder's."""
    if error is None:
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Register what is done to the pages."""
    app.connect("source-read", complete)
    app.connect("build-finished", copy_start_page)
