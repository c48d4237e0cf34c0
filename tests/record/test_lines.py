"""JSON lines with checksums: written, read, damaged, rewritten."""

import hashlib
import json
import math
from pathlib import Path

import pytest

from fedappeal.record import lines
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import append_lines, rewrite, seal_lines, written_lines
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError

OLD = b'{"round": 1, "loss": 0.5}\n{"round": 2, "loss": 0.25}\n'
"""Lines of a version that wrote no checksums."""


def problems(path: Path) -> dict[int, str]:
    return {line.number: line.problem for line in written_lines(path) if line.problem}


def test_each_line_states_the_checksum_of_it_and_of_the_check_before(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_lines(path, [{"round": 1, "check": 0.5}])
    append_lines(path, [{"round": 2}, {}])
    first = hashlib.sha256(b'{"round": 1, "check": 0.5}').hexdigest()[:16]
    second = hashlib.sha256(first.encode() + b'{"round": 2}').hexdigest()[:16]
    third = hashlib.sha256(second.encode() + b"{}").hexdigest()[:16]
    assert path.read_text().splitlines() == [
        f'{{"round": 1, "check": 0.5, "check": "{first}"}}',
        f'{{"round": 2, "check": "{second}"}}',
        f'{{"check": "{third}"}}',
    ]
    assert Record(tmp_path).history == [{"round": 1, "check": 0.5}, {"round": 2}, {}]
    assert problems(path) == {}


@pytest.mark.parametrize("place", range(0, 330, 7))
def test_every_changed_byte_is_found_in_its_line(place: int, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_lines(path, [{"round": number, "loss": 1 / number, "text": "x" * number} for number in range(1, 6)])
    content = bytearray(path.read_bytes())
    if content[place : place + 1] == b"\n":
        return
    content[place] ^= 1
    path.write_bytes(content)
    number = content[:place].count(b"\n") + 1
    # A first line without its check is as one of an earlier version: the next line does not fit it.
    assert list(problems(path)) in ([number], [2] if 37 <= place < 67 else [])


def test_a_line_that_is_gone_added_or_without_check_is_found(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_lines(path, [{"round": number} for number in (1, 2, 3, 4)])
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join([whole[0], *whole[2:]]))
    assert problems(path) == {2: "it does not match its checksum"}
    path.write_text("".join([*whole[:2], '{"round": 2}\n', *whole[2:]]))
    assert problems(path) == {3: "it has no checksum"}
    path.write_text("".join(whole)[:-9])
    assert problems(path) == {}, "a crash cut the last line short"


def test_lines_of_an_earlier_version_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(OLD)
    append_lines(path, [{"round": 3}, {"round": 4}])
    assert path.read_bytes().startswith(OLD)
    assert [bool(line.check) for line in written_lines(path)] == [False, False, True, True]
    assert problems(path) == {}
    assert [line["round"] for line in Record(tmp_path).history] == [1, 2, 3, 4]
    RunFolder(tmp_path, "").forget_after(3)
    assert path.read_bytes().startswith(OLD)
    append_lines(path, [{"round": 4, "loss": 0.0}])
    assert problems(path) == {}


def test_lines_that_a_resume_leaves_fit_each_other_and_damage_stays_damage(tmp_path: Path) -> None:
    folder, path = RunFolder(tmp_path, ""), tmp_path / "events.jsonl"
    for number in (1, 2, 3):
        append_lines(path, [{"event": "round", "round": number}, {"event": "refused", "reason": f"r{number}"}])
    before = path.read_bytes().splitlines()
    folder.forget_after(2)
    after = path.read_bytes().splitlines()
    assert after[:4] == before[:4]
    assert problems(path) == {}
    path.write_bytes(path.read_bytes().replace(b"r2", b"r7"))
    folder.forget_after(1)
    assert problems(path) == {3: "it does not match its checksum"}
    (warning,) = folder.mend()
    assert "events.jsonl' is damaged: line 3: it does not match its checksum (fedappeal verify shows all)" in warning
    assert list(folder.mend()) == [], "it was said a moment ago"
    folder.event("resumed", round=1)
    assert list(folder.mend()) == [warning]


def test_a_damaged_line_that_is_put_aside_leaves_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    needed = dict.fromkeys(
        ("asked", "joined", "sat_out", "left", "evaluated", "bytes_up", "bytes_down", "seconds"), 1
    )
    append_lines(path, [{"round": number, **needed} for number in (1, 2, 3)])
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + whole[1][5:] + whole[2])
    assert len(list(RunFolder(tmp_path, "").mend())) == 1
    assert [line["round"] for line in Record(tmp_path).history] == [1, 3]
    assert problems(path) == {}


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("cut", ["", '{"round": 4, "cli'])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_last_line_is_the_last_of_all(
    number: int, cut: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    whole = [{"round": n, "client-ids": ["ä" * n]} for n in range(1, number + 1)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in whole) + cut
    (tmp_path / "measurements.jsonl").write_text(text)
    record = Record(tmp_path)
    assert record.last_measurements == (record.measurements[-1] if number else None)


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    append_lines(path, [{"round": 1, "loss": [math.inf, 0.5, math.nan], "more": {"a": (-math.inf, "NaN")}}])
    assert [line.body for line in written_lines(path)] == [
        b'{"round": 1, "loss": [null, 0.5, null], "more": {"a": [null, "NaN"]}}'
    ]
    rewrite(path, seal_lines([{"round": 1, "loss": math.nan}]))
    assert [line.body for line in written_lines(path)] == [b'{"round": 1, "loss": null}']


def test_a_file_that_is_not_there_has_no_last_line(tmp_path: Path) -> None:
    assert Record(tmp_path).last_measurements is None


@pytest.mark.parametrize("text", ["[1]\n", '{"round": -1}\n', '{"round": 1}\n\n', "no json\n"])
def test_a_damaged_last_line_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"measurements.jsonl' cannot be read: "):
        _ = Record(tmp_path).last_measurements
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError):
        _ = Record(tmp_path).last_measurements
