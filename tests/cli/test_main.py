"""The command itself: its versions, and its help as a user reads it."""

import errno
import platform
import sys
from importlib.metadata import version
from unittest.mock import Mock

import pytest

from fedappeal.cli.main import main
from fedappeal.flower.control import ControlError
from fedappeal.runs.launch.observers import RunUnfinished
from fedappeal.settings.model import Failure


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["fedappeal", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_versions_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(capsys, monkeypatch, "--version") == (
        f"fedappeal {version('fedappeal')} (flwr {version('flwr')}, torch {version('torch')}, "
        f"python {platform.python_version()})\n"
    )


@pytest.mark.parametrize("command", ["local", "simulate", "submit", "reproduce", "compare", "client", "resume"])
def test_help_shows_a_per_cent_sign_once(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    option = "--help-all" if command in ("local", "simulate", "submit", "client") else "--help"
    text = printed(capsys, monkeypatch, command, option)
    assert "%%" not in text
    assert ("max(10, 5 % of the rounds)" in text) == (command in ("local", "simulate", "submit"))


def test_ctrl_c_while_it_imports_ends_it_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("check_names", "sleep_while_waiting"):
        monkeypatch.setattr(f"fedappeal.cli.main.{name}", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/runs/\x1b[31mx")

    monkeypatch.setattr("fedappeal.cli.start.resume_run", full)
    monkeypatch.setattr(sys, "argv", ["fedappeal", "resume", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"fedappeal: [Errno {errno.ENOSPC}] No space left on device: ")
    assert printed.count("\n") == 1
    assert printed.strip().isprintable()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ControlError("the SuperLink does\x1b[31m not answer"), "fedappeal: the SuperLink does"),
        (RunUnfinished("run 1: it failed", "run 2: so did it"), "fedappeal: run 1: it failed\nfedappeal: run 2: so "),
        (RunUnfinished("interrupted; what now", code=130), "interrupted; what now\n"),
    ],
)
def test_what_ends_a_command_is_a_line_each_and_its_exit_code(
    failure: Failure, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedappeal.cli.start.resume_run", Mock(side_effect=failure))
    monkeypatch.setattr(sys, "argv", ["fedappeal", "resume", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == failure.code
    printed = capsys.readouterr().err
    assert printed.startswith(said)
    assert printed.count("\n") == len(failure.lines)
    assert printed.replace("\n", "").isprintable()
