"""The last line of a file, read from its end: against all of its lines."""

import json
import math
from pathlib import Path

import pytest

from fedappeal.record import lines
from fedappeal.settings.config import ConfigError


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("cut", ["", '{"round": 4, "cli'])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_it_is_the_last_of_all(
    number: int, cut: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    path = tmp_path / "measurements.jsonl"
    whole = [{"round": n, "client-ids": ["ä" * n]} for n in range(1, number + 1)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in whole) + cut)
    every = lines.written_lines(path)
    assert lines.last_line(path) == (every[-1] if every else None)


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    lines.append_lines(path, [{"round": 1, "loss": [math.inf, 0.5, math.nan], "more": {"a": (-math.inf, "NaN")}}])
    expected = '{"round": 1, "loss": [null, 0.5, null], "more": {"a": [null, "NaN"]}}\n'
    assert path.read_text() == expected
    lines.rewrite(path, [{"round": 1, "loss": math.nan}])
    assert path.read_text() == '{"round": 1, "loss": null}\n'


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert lines.last_line(tmp_path / "nothing.jsonl") is None


@pytest.mark.parametrize("text", ["[1]\n", '{"round": -1}\n', '{"round": 1}\n\n', "no json\n"])
def test_a_damaged_one_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"measurements.jsonl' cannot be read: "):
        lines.last_line(path)
    with pytest.raises(ConfigError):
        lines.last_line(tmp_path)
