"""Promise: a run that is killed while it writes a file loses no finished round (`make soak` tries every point)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
def test_runs_killed_at_a_sample_of_their_writes_end_as_undisturbed_ones(tmp_path: Path) -> None:
    kills = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.soak.kills",
            "--kinds",
            "on-disk,mixture",
            "--at-most",
            "7",
            "--out",
            str(tmp_path / "k"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert kills.returncode == 0, kills.stdout + kills.stderr
    counted = json.loads(kills.stdout.splitlines()[-1])
    assert counted == {"simulated": 22, "local": 0, "wrong": 0}
