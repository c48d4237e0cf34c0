"""Every experiment in its short form, through the command, as a change has to leave it: `make test-reproduce`."""

import json
import sys
from pathlib import Path

import pytest

from fedappeal.reproductions import experiment_names, load_experiment
from fedappeal.studies.plan import make_plan
from tests import warm

pytestmark = pytest.mark.reproduce


@pytest.mark.parametrize("name", experiment_names())
def test_the_short_form(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedappeal.cli.main", "reproduce", name, "--quick", "--jobs", "2"]
    done = warm.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr

    experiment = load_experiment(name)
    page = (tmp_path / f"{name}-quick.md").read_text()
    assert page.startswith(f"# {experiment.title}\n")
    numbers = json.loads((tmp_path / f"{name}-quick.json").read_text())
    plan = make_plan(experiment, tmp_path, quick=True)
    rows, planned = [row for row in numbers["rows"] if not row["skipped"]], {run.arm.name for run in plan.runs}
    assert [arm["name"] for arm in rows] == [arm.name for arm in experiment.arms if arm.name in planned]
    for arm in rows:
        assert arm["seeds"] == [0]
        assert any(None not in values for values in arm["ours"].values()), f"{arm['name']} measured nothing"
    if experiment.figure:
        assert (tmp_path / f"{name}-quick.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (tmp_path / f"{name}-quick.svg").read_text()
