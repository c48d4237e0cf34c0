"""docs/notebook.ipynb as it is stored: with what its cells show. `make test-wheel` runs them and compares that."""

import json
from pathlib import Path

from tests.docs.pages import DOCS

NOTEBOOK = DOCS / "notebook.ipynb"


def shown(notebook: Path) -> list[list[tuple[str, list[str]]]]:
    """By code cell: the kind of each output, and the forms in which it is shown."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    return [[(out["output_type"], sorted(out.get("data", {}))) for out in cell["outputs"]] for cell in cells]


def test_it_was_run_once_from_its_beginning_to_its_end() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))


def test_what_is_stored_is_small_and_nothing_of_the_machine_that_ran_it() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < 400_000
    assert not [word for word in ("site-packages", "/home/", "/tmp/", "Traceback") if word in text]
    kinds = [kind for cell in shown(NOTEBOOK) for kind, _ in cell]
    assert "error" not in kinds
    assert any("image/png" in forms for cell in shown(NOTEBOOK) for _, forms in cell)
