"""An owner's limits: their text, their file, and the command that shows and sets them."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from client.limits.limits import LIMITS, Limits, read_limits, reset_limits, write_limits
from fedappeal.cli.main import main
from fedappeal.settings.config import ConfigError


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == Limits()
    write_limits(tmp_path, Limits(max_steps=2000, max_seconds=10))
    file = tmp_path / LIMITS
    assert json.loads(file.read_text()) == {"max-steps": 2000, "max-seconds": 10.0}
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_limits(tmp_path) == Limits(max_steps=2000, max_seconds=10)
    reset_limits(tmp_path)
    assert read_limits(tmp_path) == Limits()


def test_a_text_goes_before_the_rest() -> None:
    limits = Limits(max_steps=5, min_batch=2)
    assert limits.with_text("") == limits
    assert limits.with_text(" max-steps=7   max_model=1.5") == Limits(max_steps=7, min_batch=2, max_model=1.5)
    none = limits.with_text("off")
    assert none == Limits.off()
    assert {value for key, value in none.as_config().items() if key.startswith("max-")} == {0}
    assert (none.min_steps, none.min_batch) == (1, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("max-steps", r"limits = 'max-steps' is not allowed: KEY=VALUE separated by spaces, or 'off'$"),
        ("max-stps=3", r"unknown setting 'max-stps'; did you mean 'max-steps'\?$"),
        ("max-steps=many", r"max-steps = 'many' is not allowed"),
        ("min-batch=0", r"min-batch = 0 is not allowed"),
        ("max-seconds=nan", r"max-seconds = nan is not allowed"),
    ],
)
def test_a_text_that_is_wrong_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Limits().with_text(text)


@pytest.mark.parametrize("content", ["{", "[1]", '{"max-stps": 3}', '{"max-steps": -1}', "\x00"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / LIMITS).write_text(content)
    with pytest.raises(ConfigError, match=f"^file '{tmp_path}/limits.json'") as error:
        read_limits(tmp_path)
    assert "\n" not in str(error.value)


def test_a_file_is_parsed_again_only_where_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(content: bytes) -> Any:
        parsed.append(content)
        return json.loads(content)

    monkeypatch.setattr("client.limits.limits.parse_json", parse)
    assert read_limits(tmp_path) == Limits()
    write_limits(tmp_path, Limits(max_steps=7))
    assert [read_limits(tmp_path).max_steps for _ in range(3)] == [7, 7, 7]
    assert len(parsed) == 1
    write_limits(tmp_path, Limits(max_steps=8))
    assert read_limits(tmp_path).max_steps == 8
    (tmp_path / LIMITS).write_text('{"max-steps": 9}')  # by an editor: the same inode
    assert read_limits(tmp_path).max_steps == 9
    (tmp_path / LIMITS).unlink()
    assert read_limits(tmp_path) == Limits()


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["fedappeal", "client", "limits", *options])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    assert ended.value.code in (0, None), out.err
    return out.out.splitlines()


def test_the_command_shows_sets_and_resets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    here = ("--state-dir", str(folder))
    lines = printed(monkeypatch, capsys, *here)
    assert [line.split()[0] for line in lines] == Limits.keys()
    assert not folder.exists(), "showing writes nothing"
    lines = printed(monkeypatch, capsys, *here, "--max-steps", "2000", "--max-seconds", "0")
    assert folder.stat().st_mode & 0o777 == 0o700, "keys and requirements will lie there"
    assert lines[0].split()[:3] == ["max-steps", "2,000", "gradients"]
    assert lines[0].endswith("(default 10,000)")
    assert lines[3].split()[:3] == ["max-seconds", "none", "seconds"]
    printed(monkeypatch, capsys, *here, "--min-batch", "4")
    assert read_limits(folder) == Limits(max_steps=2000, max_seconds=0, min_batch=4)
    printed(monkeypatch, capsys, *here, "--reset", "--max-runs", "7")
    assert read_limits(folder) == Limits(max_runs=7)
    printed(monkeypatch, capsys, *here, "--reset")
    assert read_limits(folder) == Limits()


def test_a_limit_that_is_not_allowed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    monkeypatch.setattr(
        sys, "argv", ["fedappeal", "client", "limits", "--state-dir", str(folder), "--min-batch", "0"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("fedappeal: min-batch = 0 is not allowed")
    assert not folder.exists()


def test_hours_power_and_network_are_set_shown_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--state-dir", str(tmp_path))
    lines = printed(monkeypatch, capsys, *here, "--hours", "22-6", "--mains-only", "--max-cpu", "0.5")
    shown = {line.split()[0]: line.split()[1] for line in lines}
    assert (shown["hours"], shown["mains-only"], shown["unmetered-only"]) == ("22-6", "yes", "no")
    assert read_limits(tmp_path) == Limits(hours="22-6", mains_only=True, max_cpu=0.5)
    printed(monkeypatch, capsys, *here, "--no-mains-only")
    assert read_limits(tmp_path) == Limits(hours="22-6", max_cpu=0.5)
    assert Limits().with_text("hours=12:30-13,18-8 mains-only=true") == Limits(hours="12:30-13,18-8", mains_only=True)
    assert Limits(hours="9-17", mains_only=True).with_text("off") == Limits.off()


@pytest.mark.parametrize("text", ["hours=25-3", "hours=9", "mains-only=perhaps", "max-cpu=-1"])
def test_hours_and_switches_of_another_form_are_one_line(text: str) -> None:
    key = text.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{key} = .* is not allowed") as caught:
        Limits().with_text(text)
    assert "\n" not in str(caught.value)


def test_a_file_of_limits_whose_time_was_set_back_is_read_again(tmp_path: Path) -> None:
    """`cp -p`, an archive or a synchronised folder keep the time of another file."""
    file = tmp_path / "limits.json"
    file.write_text('{"max-cpu": 1}')
    state = file.stat()
    assert read_limits(tmp_path).max_cpu == 1
    time.sleep(0.02)  # longer than a file system's clock ticks
    file.write_text('{"max-cpu": 2}')
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert read_limits(tmp_path).max_cpu == 2
