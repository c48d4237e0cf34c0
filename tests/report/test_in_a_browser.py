"""A report in a real browser: all charts are drawn."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedappeal.report.report import ReportOptions, write_report
from server.decisions import packed
from server.run_folder import PARTICIPATION, RunFolder
from tests.comparison.recorded import a_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("single_file", [False, True])
def test_all_charts_are_drawn(tmp_path: Path, single_file: bool) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5, "gm_appeal": 0.5, "loss": 1.0}] * 3, strategy="maxfl")
    RunFolder.open(path).append(PARTICIPATION, *(packed(n, {"anna": "joined", "bert": "left"}) for n in (1, 2, 3)))
    file = write_report([path], ReportOptions(single_file=single_file))
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--virtual-time-budget=10000", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    drawn = re.findall(r'<div class="chart[^"]*js-plotly-plot" id="chart-\d+"', done.stdout)
    assert len(drawn) == file.read_text().count('id="chart-') == 7
    assert done.stdout.count('class="main-svg"') >= 7
