"""`fedappeal compare`, on run folders written by hand."""

import json
from pathlib import Path

import pytest

from fedappeal.cli.compare import compare_runs
from fedappeal.experiments.framework.comparison import comparison_tables, draw_comparison, read_runs
from fedappeal.protocol.config import ConfigError, RunConfig
from server.run_folder import HISTORY, RunFolder


def a_run(path: Path, lines: list[dict[str, float]], **settings: object) -> Path:
    folder = RunFolder.create(path, RunConfig.parse(settings))
    basis = {"joined": 1, "asked": 2, "left": 0, "failed": 0, "bytes_up": 500_000, "bytes_down": 1_000_000}
    folder.append(HISTORY, *({**basis, "round": n + 1, "seconds": 0.5, **line} for n, line in enumerate(lines)))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        a_run(tmp_path / "sweep" / "a", [{"accuracy": 0.5, "gm_appeal": 0.1}, {"joined": 2}], seed=1),
        a_run(
            tmp_path / "b", [{"accuracy": 0.25, "left": 3}, {"accuracy": 0.75, "asked": 0, "joined": 0}], rounds=30
        ),
    ]


def test_the_numbers_by_hand(runs: list[Path]) -> None:
    results, settings = comparison_tables(read_runs(runs))
    assert results.header == ("", "sweep/a", "b")
    rows = {row[0]: row[1:] for row in results.rows}
    assert rows["rounds"] == ("2", "2")
    assert rows["test accuracy %"] == ("50.0", "75.0")
    assert rows["test accuracy %, last 20 rounds"] == ("50.0", "50.0")
    assert rows["GM-Appeal"] == ("0.100", "-")
    assert rows["joined, % of those asked"] == ("75.0", "50.0")
    assert rows["clients that left"] == ("0", "3")
    assert rows["MB up"] == ("1.0", "1.0")
    assert rows["MB down"] == ("2.0", "2.0")
    assert rows["seconds in all"] == ("1.0", "1.0")
    assert "unseen: test accuracy %" not in rows
    assert settings.rows == (("rounds", "20", "30"), ("seed", "1", "0"))


def test_settings_of_plug_ins_are_compared_by_key(tmp_path: Path) -> None:
    paths = [
        a_run(tmp_path / "a", [{}], **{"maxfl.server-lr": 0.5, "solo.steps": 9}),
        a_run(tmp_path / "b", [{}], **{"maxfl.server-lr": 1.5, "solo.steps": 9}),
        a_run(tmp_path / "c", [{}], **{"solo.steps": 9}),
    ]
    (_, settings) = comparison_tables(read_runs(paths))
    assert ("maxfl.server-lr", "0.5", "1.5") in [row[:3] for row in settings.rows]
    assert "solo.steps" not in {row[0] for row in settings.rows}


def test_an_early_end_and_clients_that_could_not_measure_are_named(tmp_path: Path, runs: list[Path]) -> None:
    path = a_run(tmp_path / "d", [{"accuracy": 0.5, "evaluated": 2, "expected": 3}])
    RunFolder(path, "").event("finished", round=1, reason="all left")
    rows = {row[0]: row[1:] for row in comparison_tables(read_runs([runs[0], path]))[0].rows}
    assert rows["ended early"] == ("-", "all left")
    assert rows["clients that measured the last model"] == ("-", "2 of 3")
    assert not {"ended early", "clients that measured the last model"} & {
        row[0] for row in comparison_tables(read_runs(runs))[0].rows
    }


def test_a_run_alone_and_the_picture(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare_runs(runs[:1], tmp_path / "new" / "plot.png")
    shown = capsys.readouterr().out
    assert "Settings that differ" not in shown
    assert "plot.png" in shown.replace("\n", "")
    assert (tmp_path / "new" / "plot.png").read_bytes().startswith(b"\x89PNG")
    draw_comparison(read_runs(runs * 1), tmp_path / "plot.svg")
    picture = (tmp_path / "plot.svg").read_text()
    assert "</svg>" in picture


def test_what_is_not_allowed_is_one_line(runs: list[Path], tmp_path: Path) -> None:
    for paths, plot, line in (
        ([], None, "which runs"),
        ([tmp_path], None, "is not the folder of a run"),
        ([runs[0], runs[0]], None, "a run is named twice"),
        (runs, tmp_path / "plot.pdf", r"plot = '.*plot.pdf' is not allowed: a file that ends in .png or .svg"),
    ):
        with pytest.raises(ConfigError, match=line):
            compare_runs(paths, plot)
    empty = a_run(tmp_path / "c", [])
    with pytest.raises(ConfigError, match="has no finished round"):
        read_runs([empty])
    assert json.loads((runs[0] / "config.json").read_text())["settings"]["seed"] == 1
