"""What the server is told of an error: one line, and nothing of the device's files."""

import sys
from pathlib import Path

import pytest

from client.data.refused import OwnDataError
from client.process.answer import ELSEWHERE, LONGEST, reason_of
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError

HOME = Path.home()


@pytest.mark.parametrize(
    "text",
    [
        f"file '{HOME}/.fedappeal/client/requirement-1.safetensors' cannot be read: no such file",
        "file '/home/annika smith/my state/limits.json' cannot be read",
        "file '/home/annika's/my photos' cannot be read: no such file",
        f"state-dir = {HOME}/state is not allowed",
        f"see {sys.prefix}/lib/python3.11/site-packages/client/app.py, line 3",
        "data = '~/photos/x' is not allowed",
        "data=~/photos is not allowed",
        r"file 'C:\Users\annika\state' cannot be read",
        r"C:\Users\annika\state cannot be read",
        "the file (/srv/photos) is gone",
        'open("../photos/1.png") failed',
        "file:///srv/photos is gone",
    ],
)
def test_no_path_is_told(text: str) -> None:
    told = reason_of(ConfigError(text))
    assert ELSEWHERE in told
    for part in ("annika", "photos", "state/", "site-packages", str(HOME), sys.prefix, ".fedappeal"):
        assert part not in told


def test_the_owners_own_folders_are_not_told_whatever_they_are_called() -> None:
    error = ConfigError("anna's photos: beds.csv in anna's photos/new, not found in 'anna's photos/old'")
    assert reason_of(error, ("anna's photos", "")) == (
        f"ConfigError: {ELSEWHERE} beds.csv in {ELSEWHERE} not found in {ELSEWHERE}"
    )


def test_what_the_operator_can_change_is_told_word_for_word() -> None:
    line = "layout 01ab of the model that was sent does not match this client's 23cd (task digits, model mlp)"
    assert reason_of(ConfigError(line)) == f"ConfigError: {line}"
    assert (
        reason_of(ConfigError("rho_k = nan:\nit has to be finite")) == "ConfigError: rho_k = nan: it has to be finite"
    )
    assert reason_of(ConfigError("1/2 of them, 3 MB/s")) == "ConfigError: 1/2 of them, 3 MB/s"


@pytest.mark.parametrize("error", [ValueError("label 7 of anna"), KeyError("/srv/x"), SystemExit(3), MemoryError()])
def test_of_any_other_error_its_kind_is_told(error: BaseException) -> None:
    assert reason_of(error) == f"{type(error).__name__} (the client's log says more)"


def test_of_the_owners_data_a_category_is_told() -> None:
    error = OwnDataError(DataProblem.VALUES, "data = '/srv/beds.csv': row 17, column width: the cell is empty")
    assert reason_of(error) == f"OwnDataError: {DataProblem.VALUES.text} (the client's log says more)"


def test_a_reason_is_one_printable_line_of_bounded_length() -> None:
    told = reason_of(ConfigError("\x1b[31m" + "x\ny" * 10_000))
    assert told.isprintable()
    assert len(told) == LONGEST
    odd = type("E" * 1000, (BaseException,), {})
    assert len(reason_of(odd())) == LONGEST
