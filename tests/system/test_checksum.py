"""The checksum in our safetensors files: what it covers, which files are read without one."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fedappeal.settings.config import ConfigError
from fedappeal.system.files import CHECKSUM_KEY, FORMAT_KEY, read_safetensors, read_values, write_safetensors

ARRAYS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "n": np.array(5), "none": np.zeros(0, np.float16)}
VALUES = {"round": 3, "text": 'quo"te \\ "fedappeal-checksum":"crc32 00000000 00000000"', "share": 0.1}


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata())


def test_both_parts_are_crc32_of_what_they_cover(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_safetensors(path, ARRAYS, VALUES)
    content = path.read_bytes()
    kind, of_arrays, of_head = metadata_of(path)[CHECKSUM_KEY].split()
    start = 8 + int.from_bytes(content[:8], "little")
    assert kind == "crc32"
    assert int(of_arrays, 16) == zlib.crc32(content[start:])
    at = content.rindex(of_head.encode(), 0, start)
    assert int(of_head, 16) == zlib.crc32(content[:at] + b"0" * 8 + content[at + 8 : start])
    arrays, values = read_safetensors(path)
    assert values == VALUES
    assert {name: array.tolist() for name, array in arrays.items()} == {k: a.tolist() for k, a in ARRAYS.items()}


def test_a_file_of_an_earlier_version_or_another_program_is_read(tmp_path: Path) -> None:
    old, foreign = tmp_path / "old.safetensors", tmp_path / "foreign.safetensors"
    save_file(ARRAYS, old, {"fedappeal": json.dumps({"round": 3})})
    save_file(ARRAYS, foreign)
    assert read_safetensors(old)[1] == read_values(old) == {"round": 3}
    assert read_safetensors(foreign)[1] == {}
    assert read_safetensors(foreign)[0]["w"].tolist() == ARRAYS["w"].tolist()


def test_other_programs_read_ours(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_safetensors(path, ARRAYS, {}, texts={"format": "pt"})
    with safe_open(path, framework="numpy") as file:
        assert file.get_tensor("w").tolist() == ARRAYS["w"].tolist()
        assert file.metadata()["format"] == "pt"


def test_a_later_format_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_safetensors(path, ARRAYS, {})
    content = path.read_bytes()
    path.write_bytes(content.replace(f'"{FORMAT_KEY}":"2"'.encode(), f'"{FORMAT_KEY}":"3"'.encode()))
    with pytest.raises(ConfigError, match="damaged, or a later version of fedappeal wrote it"):
        read_safetensors(path)


def test_arrays_that_were_changed_under_their_checksum_are_refused_and_scalars_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_safetensors(path, ARRAYS, VALUES)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert read_values(path) == VALUES
    with pytest.raises(ConfigError, match=r"file\.safetensors' cannot be read: its arrays do not match"):
        read_safetensors(path)


def test_a_file_that_cannot_be_sealed_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.safetensors"
    write_safetensors(path, ARRAYS, {"n": 1})

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedappeal.system.files.seal", full)
    with pytest.raises(OSError, match="No space left"):
        write_safetensors(path, ARRAYS, {"n": 2})
    assert read_values(path) == {"n": 1}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
