"""The files that a page of docs prints: each code block whose first line is a comment with a path."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(?:python|toml)\n# (?P<path>[\w./-]+)\n(?P<rest>.*?)^```$", re.DOTALL | re.MULTILINE)


def files(page: str) -> dict[str, str]:
    """The files of a page by their paths, as they are printed there, first line included."""
    text = (DOCS / page).read_text()
    return {found["path"]: f"# {found['path']}\n{found['rest']}" for found in _BLOCK.finditer(text)}


def write_files(page: str, folder: Path) -> Path:
    """Write the files of a page into a folder, and an empty ``__init__.py`` into each package; return the folder."""
    for path, text in files(page).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.parent != folder:
            (file.parent / "__init__.py").touch()
        file.write_text(text)
    return folder


def plugins() -> dict[str, str]:
    """The files of the three pages on plug-ins, which are one folder, by their paths."""
    return files("extending.md") | files("plugins.md") | files("tasks.md")


def write_plugins(folder: Path) -> Path:
    """Write the files of the pages on plug-ins into a folder; return the folder."""
    return write_files("tasks.md", write_files("plugins.md", write_files("extending.md", folder)))


def pages() -> list[Path]:
    """The pages that are written by hand: the README and all of docs but the reproductions."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def text_of(page: Path) -> str:
    """The text of a page, in one line."""
    return " ".join(page.read_text().split())


def numbers_in(text: str, sentence: str) -> list[float]:
    """The numbers of a sentence of a text, in which N stands for each."""
    found = re.search(re.sub(r"\bN\b", r"(-?[\\d.,]*\\d)", re.escape(sentence)), text)
    assert found, sentence
    return [float(number.replace(",", "")) for number in found.groups()]
