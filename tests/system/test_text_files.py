"""Text files are UTF-8, whatever the locale: each place that opens one says so."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("fedappeal", "client", "server", "strategies", "benchmarks", "docs", ".ci")


def by_locale(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that read or write a text file and name no encoding."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("read_text", "write_text") and len(node.args) <= (name == "write_text"):
            yield node
        if name in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile"):
            values = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
            modes = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
            plain = isinstance(node.func, ast.Name)
            if (plain and not any("b" in mode for mode in modes)) or any(
                m in ("r", "w", "a", "a+", "x") for m in modes
            ):
                yield node


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("p.read_text()", True), ("p.read_text('utf-8')", False), ("p.write_text(t)", True),
        ("p.write_text(t, 'utf-8')", False), ("open(p)", True), ("open(p, 'rb')", False), ("p.open('w')", True),
        ("p.open('wb')", False), ("open(p, 'w', encoding='utf-8')", False), ("os.open(p, os.O_RDONLY)", False),
    ],
)  # fmt: skip
def test_what_is_looked_for(code: str, found: bool) -> None:
    assert bool(list(by_locale(ast.parse(code)))) == found


def test_every_text_file_is_opened_as_utf_8() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    calls = ((file, call) for file in files for call in by_locale(ast.parse(file.read_text("utf-8"))))
    assert [f"{file.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}" for file, call in calls] == []


def test_a_settings_file_is_read_as_utf_8_in_a_locale_of_ascii(tmp_path: Path) -> None:
    (tmp_path / "daily.toml").write_bytes("# für alle\nclients = 3\n".encode())
    code = "from fedappeal.views.live.settings_file import run_options; from pathlib import Path; import locale\n"
    code += "print(locale.getpreferredencoding(), run_options(Path('daily.toml'), Path('/r'), ()))"
    ascii_alone = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **ascii_alone},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("ANSI_X3.4-1968 ['--clients=3', "), done.stderr
