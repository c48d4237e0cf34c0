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
        arguments = ["--seeds", "20-21", "--only", "digits-opponents maxfl-best-equal"]
        monkeypatch.setattr(sys, "argv", ["staying", str(file), *arguments])
        staying.main()
    assert began == [20], "seed 21 is there, and 20 after the first time"
    added = file.read_text().removeprefix(before)
    assert json.loads(added)["settings"]["use"] == "best"


def test_the_committed_runs_are_planned_ones_with_their_settings() -> None:
    planned = {
        (run["table"], run["arm"], run["settings"]["seed"]): run for run in staying.planned_runs(staying.SEEDS)
    }
    committed = [json.loads(line) for line in (DOCS / "staying.jsonl").read_text().splitlines()]
    keys = [(run["table"], run["arm"], run["settings"]["seed"]) for run in committed]
    assert len({*keys}) == len(keys)
    for key, run in zip(keys, committed, strict=True):
        wanted, settings = (
            {k.replace("_", "-"): v for k, v in one["settings"].items()} for one in (planned[key], run)
        )
        for of_run in (wanted, settings):
            of_run |= of_run.pop("set", {})
            of_run.setdefault("judge-on", "cross-fitted")
        if settings["judge-on"] == "train":  # the papers' way, in which nothing is adapted
            wanted.pop("adaptation-steps", None)
            settings.pop("adaptation-steps", None)
        assert settings == wanted, key


@pytest.mark.parametrize("table", ["scarce-goodwill", "debian-opponents"])
def test_a_planned_run_is_simulated_and_measured(table: str) -> None:
    """With few rounds, on a small task."""
    run = next(run for run in staying.planned_runs(range(21, 22)) if run["table"] == table)
    settings = {key: value for key, value in run["settings"].items() if key not in ("partition", "min_examples")}
    small = {
        "task": "digits",
        "model": "logistic",
        "clients": 3,
        "rounds": 2,
        "local_steps": 1,
        "mandatory_rounds": 1,
    }
    figures = staying.run_figures({**settings, **small, "set": {"solo.steps": 2}})
    assert figures["asked"] == 1
    assert 0 <= figures["willing"] <= 1
