"""Reading idx files, and those that are none."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedappeal.tasks.datasets.idx_images import read_idx
from tests.tasks.image_files import idx_bytes


def test_idx_files_are_read_plain_and_gzipped(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(idx_bytes(values))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx_bytes(values)))
    for name in ("a", "a.gz"):
        assert np.array_equal(read_idx(tmp_path / name), values)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("short", idx_bytes(np.zeros((2, 3)))[:-1]),
        ("long", idx_bytes(np.zeros((2, 3))) + b"x"),
        ("floats", b"\0\0\x0d\x01" + struct.pack(">I", 0)),
        ("headless", b"\0\0\x08\x03\0\0"),
        ("empty", b""),
        ("text", b"<html>not found</html>"),
        ("text.gz", b"<html>not found</html>"),
        ("cut.gz", gzip.compress(idx_bytes(np.arange(100)))[:-20]),
    ],
)
def test_what_is_not_idx_is_refused_by_name(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=str(tmp_path / name)) as caught:
        read_idx(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_is_read_as_far_as_its_header_says_and_may_say(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, head = tmp_path / f"bomb{ending}", b"\0\0\x08\x01" + (4).to_bytes(4, "big")
    content = head + bytes(50_000_000)
    path.write_bytes(gzip.compress(content) if ending else content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"should hold \(4,\) bytes .* it holds 13 or more in all"):
        read_idx(path)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    monkeypatch.setenv("FEDAPPEAL_MAX_DATA", "1")
    content = b"\0\0\x08\x01" + (2_000_000).to_bytes(4, "big")
    path.write_bytes(gzip.compress(content) if ending else content)
    with pytest.raises(ValueError, match="its values need 2 MB in memory: at most 1 MB are allowed"):
        read_idx(path)
