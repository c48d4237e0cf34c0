"""Executes a notebook in a folder: ``python run_notebook.py NOTEBOOK FOLDER [COPY]``; the copy has its outputs."""

import os
import sys
from pathlib import Path
from typing import Any

SECONDS = 240
"""Of one cell, on a busy machine."""
LARGEST = 100_000
"""Characters of an output that a copy keeps; a report holds 5 MB."""


def executed(notebook: Path, folder: Path) -> Any:
    """The notebook with the outputs that its cells have in a folder; an error of a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    found = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(found, timeout=SECONDS, kernel_name="python3", resources=where, record_timing=False).execute()
    return found


def main() -> None:
    import nbformat

    notebook, folder, *copies = sys.argv[1:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = executed(Path(notebook), Path(folder))
    for output in (output for cell in found.cells for output in cell.get("outputs", [])):
        if len(output.get("data", {}).get("text/html", "")) > LARGEST:
            output["data"]["text/html"] = "<p>The stored notebook leaves this out: run the cell to see it.</p>"
    for path in copies:
        nbformat.write(found, path)
    print(f"{sum(cell.cell_type == 'code' for cell in found.cells)} cells ran")


if __name__ == "__main__":
    main()
