"""`fedappeal bench`: the short form from end to end, again without a run, and what is refused."""

from pathlib import Path

import pytest

from fedappeal.cli.commands import cli
from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.page import PAGE
from fedappeal.studies.bench.results import RESULTS, BenchResults


def command(*words: object) -> None:
    cli(["bench", *map(str, words)], standalone_mode=False)


def test_the_short_form_writes_a_page_and_is_not_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--quick", "--threads", 1, "--out", tmp_path, "--behaviours", "defect", "--strategies", "maxfl")
    command(*given)
    assert "ahead of FedAvg" in capsys.readouterr().out
    page, results = (tmp_path / PAGE).read_bytes(), BenchResults.of_file(tmp_path / RESULTS)
    assert {cell.strategy: row.seeds for cell, row in results.cells().items()} == dict.fromkeys(
        ("fedavg", "maxfl"), (0, 1)
    )
    assert b"The short form" in page
    assert b"fedappeal bench --quick --behaviours defect --strategies maxfl" in page
    command(*given)
    assert "4 of 4 runs are there already" in capsys.readouterr().out
    (tmp_path / PAGE).unlink()
    command("--from-results", tmp_path / RESULTS)
    assert (tmp_path / PAGE).read_bytes() == page


def test_known_rows_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--quick", "--threads", 1, "--behaviours", "defect", "--seeds", 1, "--out", tmp_path)
    command(*short, "--strategies", "fedavg", "--page", tmp_path / "first")
    known = tmp_path / "first" / RESULTS
    command(*short, "--strategies", "maxfl", "--known", known, "--page", tmp_path / "both")
    both = BenchResults.of_file(tmp_path / "both" / RESULTS)
    command(*short, "--strategies", "maxfl", "--page", tmp_path / "whole")
    whole = BenchResults.of_file(tmp_path / "whole" / RESULTS)
    assert both.model_dump(exclude={"command"}) == whole.model_dump(exclude={"command"})
    assert f"--strategies maxfl --seeds 1 --known {known}`;" in (tmp_path / "both" / PAGE).read_text()
    capsys.readouterr()
    with pytest.raises(ConfigError, match="these results have all rows"):
        command(*short, "--strategies", "maxfl", "--known", tmp_path / "both" / RESULTS)


def test_what_is_not_allowed_is_said_before_anything_is_started(tmp_path: Path) -> None:
    for words, said in (
        (("--seeds", -1), "seeds = -1 is not allowed"),
        (("--tasks", "mnist"), "tasks = 'mnist' is not allowed"),
        (("--from-results", tmp_path / "none.json"), "cannot be read: No such file"),
    ):
        with pytest.raises(ConfigError, match=said):
            command("--out", tmp_path / "runs", *words)
    assert not list(tmp_path.iterdir())
