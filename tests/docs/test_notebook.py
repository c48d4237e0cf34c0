"""docs/notebook.ipynb: its cells run in an empty folder, and it is stored with what they show."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.docs.run_notebook import executed
from tests.later import Later
from tests.warm import WarmPopen

nbformat = Later("nbformat")

NOTEBOOK = DOCS / "notebook.ipynb"


def shown(notebook: Any) -> list[list[tuple[str, list[str]]]]:
    """By code cell: the kind of each output, and the forms in which it is shown."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[(out.output_type, sorted(out.get("data", {}))) for out in cell.outputs] for cell in cells]


def test_it_runs_and_shows_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))
    monkeypatch.setattr("jupyter_client.launcher.Popen", WarmPopen)
    folder = tmp_path / "empty"
    folder.mkdir()
    found = executed(NOTEBOOK, folder)
    stored = nbformat.read(NOTEBOOK, as_version=4)
    assert shown(found) == shown(stored)
    assert [cell.execution_count for cell in stored.cells if cell.cell_type == "code"] == list(
        range(1, len(shown(stored)) + 1)
    )
    assert sorted(path.name for path in folder.iterdir()) == ["runs"]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["first", "own", "sweep", "table"]


def test_what_is_stored_is_small_and_nothing_of_the_machine_that_ran_it() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < 400_000
    assert not [word for word in ("site-packages", "/home/", "/tmp/", "Traceback") if word in text]
    kinds = [kind for cell in shown(nbformat.read(NOTEBOOK, as_version=4)) for kind, _ in cell]
    assert "error" not in kinds
    assert any("image/png" in forms for cell in shown(nbformat.read(NOTEBOOK, as_version=4)) for _, forms in cell)
