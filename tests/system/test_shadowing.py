"""Files of the user's that have the names of fedappeal's packages: found, and named in one line."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedappeal.cli.main import PACKAGES, check_names

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_is_in_the_way_here() -> None:
    check_names()


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("kind", ["file", "package", "folder"])
def test_a_file_in_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    there = tmp_path / (f"{name}.py" if kind == "file" else name)
    if kind == "file":
        there.write_text("raise SystemExit('it must not be imported')\n")
    else:
        there.mkdir()
        if kind == "package":
            (there / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    importlib.invalidate_caches()
    if kind == "folder":  # Python prefers a package of a later folder to a plain folder
        check_names()
        return
    with pytest.raises(ImportError) as error:
        check_names()
    assert str(error.value) == (
        f"'{there}' is in the way of fedappeal's own package '{name}' ({ROOT / name}): "
        f"rename it, or run from another folder"
    )


def test_a_module_that_is_loaded_already_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "client", raising=False)
    importlib.import_module("client")
    monkeypatch.setattr(sys, "path", sys.path[1:])
    try:
        with pytest.raises(ImportError, match="is in the way of fedappeal's own package 'client'"):
            check_names()
    finally:
        del sys.modules["client"]


def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("raise SystemExit('it must not be imported')\n")
    done = subprocess.run(
        [sys.executable, "-m", "fedappeal.cli.main", "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"fedappeal: '{tmp_path / 'server.py'}' is in the way of fedappeal's own package 'server' "
        f"({ROOT / 'server'}): rename it, or run from another folder\n"
    )
