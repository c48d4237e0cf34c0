"""Sizes of a Parquet file's pages: those that pyarrow wrote, and headers made to deceive."""

import io
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedappeal.data.data_size import unpacked_size

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
HONEST = bytes.fromhex("1500 15c801 150a")
"""Page type 0, 100 bytes decompressed, 5 in the file."""


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_all_pages_are_counted(tmp_path: Path, compression: str, version: str, dictionary: bool) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "x.parquet"
    numbers = rng.normal(size=5000)
    table = pyarrow.table({"x": numbers, "y": [f"text {n % 100}" for n in range(5000)]})
    pyarrow.parquet.write_table(
        table, path, compression=compression, data_page_version=version, use_dictionary=dictionary,
        row_group_size=2000, data_page_size=2000, write_page_checksum=dictionary,
    )  # fmt: skip
    footer = pyarrow.parquet.read_metadata(path)
    with path.open("rb") as file:
        for group in range(footer.num_row_groups):
            for column in range(2):
                part = footer.row_group(group).column(column)
                headers = part.total_uncompressed_size - unpacked_size(file, part)  # which the footer counts too
                assert 0 < headers < 0.2 * part.total_uncompressed_size


def size_of(header: bytes, content: bytes = b"12345", start: int = 0) -> int:
    page = header + b"\0" + content
    part = SimpleNamespace(data_page_offset=start, dictionary_page_offset=None, total_compressed_size=len(page))
    return unpacked_size(io.BytesIO(page), part)


def test_a_header_means_the_size_that_it_means_to_pyarrow() -> None:
    assert size_of(HONEST) == 100
    assert size_of(HONEST[:2] + bytes.fromhex("15c881808010") + HONEST[5:]) == 100, "Thrift drops all but 32 bits"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        HONEST[:5],
        HONEST[:2] + bytes.fromhex("16c801 150a"),
        HONEST[:2] + bytes.fromhex("1503 150a"),
        HONEST[:5] + bytes.fromhex("1503"),
        HONEST + bytes.fromhex("05040a"),
        HONEST + b"\x19\xfc",
        HONEST + b"\x1c" * 20,
        HONEST + b"\xf1" * 8,
    ],
    ids=[
        "no field",
        "no packed size",
        "64 bits",
        "unpacked -2",
        "packed -2",
        "long field",
        "a list",
        "deep",
        "field 123",
    ],
)
def test_any_other_header_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="the header of a page cannot be read"):
        size_of(header)


def test_a_column_that_begins_before_the_file_is_refused() -> None:
    with pytest.raises(ValueError, match="the header of a page cannot be read"):
        size_of(HONEST, start=-1)


def test_damage_ends_in_a_size_or_a_value_error() -> None:
    rng, sizes = np.random.default_rng(0), 0
    for _ in range(2000):
        with suppress(ValueError):
            assert size_of(HONEST[: rng.integers(8)] + rng.bytes(10)) >= 0
            sizes += 1
    assert 0 < sizes < 2000
