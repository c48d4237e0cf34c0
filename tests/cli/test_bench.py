"""`fedappeal bench`: a part of it from end to end, again without a run, an outsider's row, and what is refused."""

import json
from pathlib import Path

import pytest

from fedappeal.cli.commands import cli
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import Failure
from fedappeal.studies.bench import design, runs
from fedappeal.studies.bench.bench_page import PAGE
from fedappeal.studies.bench.bench_results import RESULTS, BenchResults
from tests.jobs_here import jobs_here

__all__ = ["jobs_here"]
TOY = "tests.server.test_server_run:Toy"


def command(*words: object) -> None:
    cli(["bench", *map(str, words)], standalone_mode=False)


pytestmark = pytest.mark.usefixtures("jobs_here")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs of few clients."""
    monkeypatch.setitem(design.TASKS["digits"].settings, "clients", 4)  # type: ignore[arg-type]
    monkeypatch.setattr(design, "FREE_ROUNDS", 2)


def test_a_part_writes_a_page_and_is_not_run_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--quick", "--seeds", 1, "--threads", 1, "--out", tmp_path, "--behaviours", "defect")
    command(*given)
    assert "Runs that live under" in capsys.readouterr().out
    page, results = (tmp_path / PAGE).read_bytes(), BenchResults.of_file(tmp_path / RESULTS)
    assert {cell.strategy: row.seeds for cell, row in results.cells().items()} == dict.fromkeys(
        ("fedavg", "maxfl", "fedadam"), (0,)
    )
    assert b"`fedappeal bench --quick --behaviours defect --seeds 1`" in page
    command(*given)
    assert "3 of 3 runs are there already" in capsys.readouterr().out
    (tmp_path / PAGE).unlink()
    command("--from-results", tmp_path / RESULTS)
    assert (tmp_path / PAGE).read_bytes() == page


def test_known_runs_are_not_done_again_and_an_outsiders_row_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("--tasks", "digits", "--threads", 1, "--behaviours", "defect")
    command(*short, "--strategies", "fedavg", "--seeds", 1, "--out", tmp_path / "first")
    known, both = tmp_path / "first" / RESULTS, tmp_path / "both" / RESULTS
    more = ("--strategies", TOY, "--seeds", 2, "--known", known, "--out", tmp_path / "both")
    command(*short, *more)
    results = BenchResults.of_file(both)
    assert {cell.strategy: row.seeds for cell, row in results.cells().items()} == {"fedavg": (0, 1), TOY: (0, 1)}
    assert not (tmp_path / "both" / "bench" / "digits-defect-14-fedavg" / "seed-0").exists()
    assert results.sources == {TOY: runs.source_of(TOY)}
    with pytest.raises(ConfigError, match="these results have all rows"):
        command(*short, "--strategies", TOY, "--seeds", 2, "--known", both, "--out", tmp_path)
    capsys.readouterr()
    command("--again", both, "--strategies", TOY, "--threads", 1)
    assert f"{TOY}, seed 0" in capsys.readouterr().out
    whole = json.loads(both.read_text())
    whole["rows"][1]["ours"]["score"][0] += 5
    both.write_text(json.dumps(whole))
    with pytest.raises(Failure, match="a number differs"):
        command("--again", both, "--strategies", TOY, "--threads", 1)
    assert "differs" in capsys.readouterr().out
    both.write_text(json.dumps(whole | {"sources": {TOY: "0123456789abcdef"}}))
    with pytest.raises(ConfigError, match="in these results 0123456789abcdef"):
        command("--again", both, "--strategies", TOY)


def test_what_is_not_allowed_is_said_before_anything_is_started(tmp_path: Path) -> None:
    for words, said in (
        (("--seeds", -1), "seeds = -1 is not allowed"),
        (("--tasks", "mnist"), "tasks = 'mnist' is not allowed"),
        (("--from-results", tmp_path / "none.json"), "cannot be read: No such file"),
    ):
        with pytest.raises(ConfigError, match=said):
            command("--out", tmp_path / "runs", *words)
    assert not list(tmp_path.iterdir())
