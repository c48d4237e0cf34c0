"""`fedappeal compare`, on run folders written by hand."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fedappeal.cli.compare import show_comparison
from fedappeal.cli.option_groups import CompareOptions
from fedappeal.settings.config import ConfigError
from tests.views.comparison.recorded import a_run, a_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return a_sweep(tmp_path / "sweep", {"fedavg": [0.1, 0.2, 0.3], "maxfl": [0.3, 0.5, 0.7]})


def printed(paths: Sequence[Path], **options: object) -> list[str]:
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        show_comparison(paths, CompareOptions(**options), console)  # type: ignore[arg-type]
    return captured.get().splitlines()


def test_means_and_differences(sweep: Path) -> None:
    cells = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in printed([sweep])]
    assert ["strategy", "fedavg", "maxfl"] in cells
    assert ["test accuracy %", "20.0 [5.7, 51.0]", "50.0 [14.8, 85.2]"] in cells
    assert ["test accuracy %", "+30.0 [+5.2, +54.8] better 3/3"] in cells
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in printed([sweep], baseline="maxfl")]
    assert ["test accuracy %", "-30.0 [-54.8, -5.2] worse 0/3"] in cells


def test_it_fits_80_columns_whatever_the_names(tmp_path: Path) -> None:
    numbers = {"accuracy": 0.5, "loss": 1234567.891, "gm_appeal": 1.0, "unseen_preferred_accuracy": 0.5}
    for n in range(7):
        policies = "appeal=0.5,always=0.25,defect=0.25" if n % 2 else "always"
        for seed in (0, 1):
            name = f"a-name-of-a-folder-that-is-rather-long-{n}" * 2 + f"-{seed}"
            settings = {"participation": policies, "learning-rate": 0.1 + n / 1e9, "maxfl.server-lr": 1 / (n + 1)}
            a_run(tmp_path / name, [numbers, numbers], rounds=2 + n % 3, seed=seed, **settings)
    for options in ({}, {"each_run": True}):
        lines = printed([tmp_path], **options)
        assert len(lines) > 60
        assert max(len(line) for line in lines if " " in line.strip()) <= 80  # a long name stays whole
        text = "".join("".join(lines).replace("│", "").split())
        assert "1234567.891" in text
    assert "".join(["not", "finished:", "a-name"]) in text


def test_what_a_reader_has_to_know_is_said(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(sweep / "x", [{}], seed=9, strategy="maxfl", rounds=5)
    a_run(sweep / "y", [], seed=10, strategy="maxfl")
    a_run(sweep / "z", [{"accuracy": 0.5}], seed=0, strategy="maxfl", rounds=1)
    show_comparison([sweep], CompareOptions(to="json"))
    out, err = capsys.readouterr()
    assert json.loads(out)
    said = "".join(err.split())
    for note in (
        "not finished: x (round 1 of 5); all runs are compared after round 1",
        "4 runs, 3 seeds: runs of one seed count as one, by their mean",
        "left out, because no round is finished: y",
    ):
        assert "".join(note.split()) in said


def test_files(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, output = tmp_path / "new" / "plot.png", tmp_path / "new" / "table.csv"
    lines = printed([sweep], plot=plot, output=output, to="csv")
    assert [line.partition(":")[0] for line in lines] == ["the table", "the picture"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert output.read_text().startswith("task,group,measure,mean,")
    show_comparison([sweep], CompareOptions(to="csv"))
    assert capsys.readouterr().out == output.read_text()


def test_without_the_extras_the_tables_are_printed(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "matplotlib", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert any("test accuracy %" in line for line in printed([sweep]))
    with pytest.raises(ConfigError, match=r"pip install 'fedappeal\[plots\]'"):
        printed([sweep], plot=Path("x.png"))


def test_what_is_not_allowed_is_one_line_and_writes_nothing(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, picture = tmp_path / "new.csv", tmp_path / "new.png"
    (tmp_path / "file").write_text("")
    for options, line in (
        ({"to": "xml"}, "to = 'xml' is not allowed: csv, latex, markdown, json"),
        ({"output": new}, "output = '.*new.csv' is not allowed without --to: csv, latex, markdown, json"),
        ({"output": tmp_path, "to": "csv"}, "output = '.*' is not allowed: it is a folder"),
        ({"output": tmp_path / "file" / "x", "to": "csv"}, "output = '.*x' is not allowed: no file can be made in '"),
        ({"plot": tmp_path / "plot.pdf"}, r"plot = '.*plot.pdf' is not allowed: a file that ends in .png or .svg"),
        (
            {"plot": picture, "baseline": "fedprox"},
            "baseline = 'fedprox' is not allowed: no group fits: strategy=",
        ),
        ({"plot": picture, "to": "xml"}, "to = 'xml' is not allowed"),
        (
            {"plot": picture, "output": tmp_path / "file" / "x", "to": "csv"},
            "output = '.*x' is not allowed: no file can be made in '",
        ),
    ):
        with pytest.raises(ConfigError, match=line) as error:
            show_comparison([sweep], CompareOptions(**options))  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""
    assert not new.exists()
    assert not picture.exists()
