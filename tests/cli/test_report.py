"""`fedappeal report`, and the report at the end of a run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedappeal.cli.commands import cli
from fedappeal.cli.compare import report_run
from fedappeal.cli.start import start_simulations
from fedappeal.runs.launch.in_process import InProcess
from fedappeal.runs.plan import swept_plans
from fedappeal.simulation.options import Simulation
from tests.views.comparison.recorded import a_run, a_sweep


def test_the_command_says_where_the_page_is(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path / "sweep", {"fedavg": [0.1, 0.2], "maxfl": [0.3, 0.5]})
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        cli, ["report", str(sweep), "--output", str(page), "--baseline", "maxfl", "--single-file"]
    )
    assert done.exit_code == 0, done.output
    assert "".join(done.output.split()) == f"thereport:{page}"
    assert "fedavg against maxfl" in page.read_text()


def test_the_end_of_a_run_writes_one_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "runs" / "one", [{"accuracy": 0.5}])
    report_run(run, wanted=False)
    report_run(tmp_path / "on-another-machine", wanted=True)
    assert not (run / "report.html").exists()
    assert capsys.readouterr().out == ""
    report_run(run, wanted=True)
    assert (run / "report.html").exists()
    capsys.readouterr()
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    report_run(run, wanted=True)
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("no report: output = ")


def test_a_resumed_run_has_its_later_rounds_in_the_report_that_lay_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start_simulations(
        swept_plans({"task": "digits", "clients": 3, "rounds": 2}, [], str(run)),
        InProcess(Simulation("sequential", threads=1)),
    )
    resume = ["resume", str(run), "--rounds"]
    assert "the report:" not in CliRunner().invoke(cli, [*resume, "3"]).output, "a report was not asked for"
    assert CliRunner().invoke(cli, ["report", str(run)]).exit_code == 0
    before = (run / "report.html").read_text()
    done = CliRunner().invoke(cli, [*resume, "4"])
    assert "".join(done.output.split()).endswith(f"thereport:{run}/report.html")
    after = (run / "report.html").read_text()
    assert ("in round 3" in before, "in round 4" in before) == (True, False)
    assert "in round 4" in after
