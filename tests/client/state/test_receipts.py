"""Receipts of what left a machine: written before it leaves, chained, bounded, and whole after a kill."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.state import receipts
from client.state.receipts import EARLIER, LATEST, SENT, ReceiptChain, Receipts, read_receipts
from fedappeal.record.lines import WrittenLine, written_lines


def written(folder: Path, number: int, most: int = receipts.MOST_BYTES) -> Receipts:
    kept = Receipts(folder, most, clock=lambda: 100.0)
    for place in range(number):
        kept.confirm(kept.write({"round": place, "told": {"loss": 0.5}, "hash": "ab"}))
    return kept


def numbers(kept: ReceiptChain) -> list[int]:
    return [line["number"] for line in kept.receipts]


def test_each_is_numbered_its_owners_alone_and_known_to_have_been_sent(tmp_path: Path) -> None:
    assert read_receipts(tmp_path) == ReceiptChain()
    written(tmp_path, 3)
    assert (tmp_path / SENT).stat().st_mode & 0o777 == 0o600
    kept = read_receipts(tmp_path)
    assert kept.problem == ""
    assert [(line["number"], line["round"], line["sent"]) for line in kept.receipts] == [
        (1, 0, True),
        (2, 1, True),
        (3, 2, True),
    ]
    assert kept.receipts[0]["told"] == {"loss": 0.5}
    written(tmp_path, 1)  # another process goes on
    assert (numbers(read_receipts(tmp_path)), read_receipts(tmp_path).problem) == ([1, 2, 3, 4], "")


def test_one_whose_reply_was_not_sent_is_told_apart(tmp_path: Path) -> None:
    kept = written(tmp_path, 1)
    kept.write({"round": 8})  # the process is killed here, or the message dropped
    assert [line["sent"] for line in read_receipts(tmp_path).receipts] == [True, False]
    written(tmp_path, 1)
    assert [line["sent"] for line in read_receipts(tmp_path).receipts] == [True, False, True]
    assert read_receipts(tmp_path).problem == ""


@pytest.mark.parametrize("place", range(4))
def test_a_line_that_is_changed_or_lost_is_seen(tmp_path: Path, place: int) -> None:
    written(tmp_path, 4)
    path = tmp_path / SENT
    lines = path.read_bytes().splitlines(keepends=True)
    changed = lines[place].replace(b"0.5", b"0.4")
    for others in ([changed], []):
        path.write_bytes(b"".join([*lines[:place], *others, *lines[place + 1 :]]))
        assert read_receipts(tmp_path).problem, (place, others)
        written(tmp_path, 1)  # going on hides nothing
        assert read_receipts(tmp_path).problem, (place, others)
        (tmp_path / LATEST).write_text(json.dumps({"number": 4, "check": json.loads(lines[3])["check"]}))
    path.write_bytes(b"".join(lines))
    assert read_receipts(tmp_path).problem == ""


def test_a_chain_without_its_end_or_a_file_is_seen(tmp_path: Path) -> None:
    written(tmp_path, 4, most=200)
    assert (tmp_path / EARLIER).exists()
    for name in (SENT, EARLIER, LATEST):
        path = tmp_path / name
        content = path.read_bytes()
        path.unlink()
        assert read_receipts(tmp_path).problem, name
        path.write_bytes(content)
        assert read_receipts(tmp_path).problem == ""


def test_the_files_stay_small_and_the_chain_goes_through_both(tmp_path: Path) -> None:
    written(tmp_path, 50, most=1000)
    kept = read_receipts(tmp_path)
    assert kept.problem == ""
    assert numbers(kept) == list(range(51 - len(kept.receipts), 51))
    assert 5 < len(kept.receipts) < 25
    assert all(line["sent"] for line in kept.receipts)
    assert (tmp_path / EARLIER).stat().st_size + (tmp_path / SENT).stat().st_size < 2500


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_what_a_killed_process_has_half_written_is_no_receipt(tmp_path: Path, cut: int) -> None:
    written(tmp_path, 2)
    path = tmp_path / SENT
    Receipts(tmp_path).write({"round": 7, "told": {"loss": 0.25}})
    path.write_bytes(path.read_bytes()[:-cut])
    assert (numbers(read_receipts(tmp_path)), read_receipts(tmp_path).problem) == ([1, 2], "")
    written(tmp_path, 1)
    assert (numbers(read_receipts(tmp_path)), read_receipts(tmp_path).problem) == ([1, 2, 3], "")


def test_a_kill_between_the_two_files_loses_nothing(tmp_path: Path) -> None:
    written(tmp_path, 3)
    os.replace(tmp_path / SENT, tmp_path / EARLIER)
    written(tmp_path, 2)
    assert (numbers(read_receipts(tmp_path)), read_receipts(tmp_path).problem) == ([1, 2, 3, 4, 5], "")


def test_a_disk_that_fails_for_a_moment_loses_no_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = written(tmp_path, 3)

    def failing(path: Path) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", failing)
        with pytest.raises(OSError, match="Input/output"):
            kept.write({"round": 4})
    assert (numbers(read_receipts(tmp_path)), read_receipts(tmp_path).problem) == ([1, 2, 3], "")


def test_what_is_written_while_they_are_read_breaks_no_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 3, most=300)
    waiting = [SENT]

    def read(path: Path) -> Iterator[WrittenLine]:
        if path.name in waiting:
            waiting.clear()
            written(tmp_path, 9, most=300)
        return written_lines(path)

    monkeypatch.setattr(receipts, "written_lines", read)
    kept = read_receipts(tmp_path)
    assert (kept.problem, numbers(kept)[-1], waiting) == ("", 12, [])


def test_a_full_disk_leaves_no_part_of_a_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = written(tmp_path, 1)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            kept.write({"round": 2})
    kept.confirm(kept.write({"round": 3}))
    assert [line["round"] for line in read_receipts(tmp_path).receipts] == [0, 3]
    assert read_receipts(tmp_path).problem == ""
