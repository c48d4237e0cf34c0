"""Reading idx files, and those that are none."""

import gzip
import struct
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
