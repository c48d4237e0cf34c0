"""`fedappeal verify`, and the warnings of resume, compare and report about a changed digit."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedappeal.cli.commands import cli
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import HISTORY, append_lines, split_check
from fedappeal.record.reader import Record
from fedappeal.system.files import write_safetensors
from tests.views.comparison.recorded import a_run

DAMAGE = "is damaged: line 2: it does not match its checksum"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    needed = {"sat_out": 0, "evaluated": 2}
    path = a_run(tmp_path / "run", [{"accuracy": accuracy, **needed} for accuracy in (0.5, 0.75, 0.875)])
    for number in (1, 2, 3):
        RunFolder.open(path).event("round", round=number)
    write_safetensors(path / "model.safetensors", {}, {"round": 3})
    return path


def change_a_digit(path: Path) -> None:
    file = path / HISTORY
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"accuracy": 0.75', b'"accuracy": 0.95'))
    assert file.read_bytes() != content


def verify(path: Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["verify", str(path)], env={"COLUMNS": "500"})
    return done.exit_code, done.output


def test_a_whole_folder_is_as_it_was_written_and_a_line_without_an_end_is_damage(run: Path) -> None:
    assert verify(run) == (0, f"'{run}' is as it was written\n")
    whole = (run / HISTORY).read_bytes()
    for behind in (b'{"round": 4, "acc', b'{"round": 4}', b"\0"):
        (run / HISTORY).write_bytes(whole + behind)
        code, output = verify(run)
        assert code == 1
        assert f"file '{run / HISTORY}' is damaged: line 4: it does not end" in output
        assert len(Record(run).history) == 3, "who reads the run does without it"


def test_the_file_and_the_line_are_named(run: Path) -> None:
    change_a_digit(run)
    with (run / "events.jsonl").open("a") as file:
        file.write("nonsense\n")
    model = run / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    code, output = verify(run)
    assert code == 1
    assert f"file '{run / HISTORY}' {DAMAGE}\n" in output
    assert f"file '{run / 'events.jsonl'}' is damaged: line 4: " in output
    assert f"file '{model}' " in output
    assert len(output.splitlines()) == 3


def test_an_old_run_that_this_version_continued_says_where_its_checksums_begin(run: Path) -> None:
    file = run / HISTORY
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"".join(split_check(line)[0] + b"\n" for line in lines[:2]))
    assert verify(run)[1].startswith(f"file '{file}': its lines have no checksum: an earlier version wrote them\n")
    append_lines(file, [{"round": 3}])
    assert verify(run) == (
        0,
        f"file '{file}': its lines 1 to 2 have no checksum: an earlier version wrote them\n"
        f"'{run}' is as it was written\n",
    )


def test_no_run_is_one_line(tmp_path: Path) -> None:
    assert "is not the folder of a run" in str(CliRunner().invoke(cli, ["verify", str(tmp_path)]).exception)


@pytest.mark.parametrize("command", ["compare", "report"])
def test_compare_and_report_warn_in_one_line(command: str, run: Path) -> None:
    change_a_digit(run)
    done = CliRunner().invoke(cli, [command, str(run)], env={"COLUMNS": "500"})
    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if "damaged" in line] == [
        line
        for line in done.output.splitlines()
        if f"{run / HISTORY}' {DAMAGE}" in line and "fedappeal verify" in line
    ]
    assert done.output.count(DAMAGE) == 1


def test_what_continues_a_run_warns_in_one_line_and_leaves_the_damage_to_be_seen(run: Path) -> None:
    change_a_digit(run)
    folder = RunFolder.open(run)
    assert [DAMAGE in line for line in folder.mend()] == [True]
    folder.forget_after(2)
    folder.append(HISTORY, {"round": 3})
    assert DAMAGE in verify(run)[1]
    assert verify(run)[1].count("damaged") == 1
