"""What a client works on, as its owner reads it: there while it lasts, bounded, and never in the way of the work."""

import json
from pathlib import Path

import pytest

from client.process.status import describe
from client.state.signs import WORKING, Work, forget_work, work_of, working
from client.state.store import DiskStore


def test_it_is_there_while_it_lasts_and_for_its_owner_alone(tmp_path: Path) -> None:
    with working(tmp_path, "round 3, maxfl on digits", clock=lambda: 100.0):
        assert work_of(tmp_path) == Work("round 3, maxfl on digits", 100.0)
        assert (tmp_path / WORKING).stat().st_mode & 0o777 == 0o600
        DiskStore(tmp_path)
        (line,) = [each for each in describe(tmp_path) if each.startswith("working")]
        assert line.startswith("working    on round 3, maxfl on digits, since ")
    assert work_of(tmp_path) is None


def test_work_that_fails_is_over_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), working(tmp_path, "round 3"):
        raise RuntimeError
    assert work_of(tmp_path) is None


def test_what_an_earlier_process_left_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / WORKING).write_text('{"what": "round 1", "since": 1.0}')
    forget_work(tmp_path)
    assert work_of(tmp_path) is None
    forget_work(None)


def test_a_servers_words_are_short_and_printable(tmp_path: Path) -> None:
    with working(tmp_path, "\x1b[31m" + "x" * 10_000):
        work = work_of(tmp_path)
        assert work is not None
        assert work.what.isprintable()
        assert len(work.what) <= 200


@pytest.mark.parametrize("text", ["", "[]", '{"what": 3}', '{"what": "x", "since": "y"}', "x" * 100_000])
def test_a_file_that_cannot_be_read_is_no_work(tmp_path: Path, text: str) -> None:
    (tmp_path / WORKING).write_text(text)
    assert work_of(tmp_path) is None


def test_a_folder_that_cannot_be_written_does_not_stop_the_work(tmp_path: Path) -> None:
    done = []
    with working(tmp_path / "gone", "round 3"):
        done.append(json.dumps(None))
    assert done
