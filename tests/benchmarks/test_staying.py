"""``python -m benchmarks.staying`` goes on with the file of runs that is committed."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import staying
from tests.docs.pages import DOCS


def test_only_the_runs_that_a_file_lacks_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shutil.copy(DOCS / "staying.jsonl", tmp_path / "runs.jsonl")
    before = file.read_text()
    began: list[object] = []

    def measured(settings: staying.Settings) -> dict[str, object]:
        began.append(settings["seed"])
        return {"willing": 0.5}

    monkeypatch.setattr(staying, "run_figures", measured)
    for _ in range(2):
        arguments = ["--seeds", "20-21", "--only", "digits, opponents, maxfl, best, equal"]
        monkeypatch.setattr(sys, "argv", ["staying", str(file), *arguments])
        staying.main()
    assert began == [20], "seed 21 is there, and 20 after the first time"
    added = file.read_text().removeprefix(before)
    assert json.loads(added)["settings"]["use"] == "best"
