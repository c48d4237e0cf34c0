"""Promise: a small file that would need much memory is refused, by its header.

Each bomb is some MB on the disk, or less, and more than half a GB in memory. A process of its own reads it, and says
by how much its memory grew at its highest.
"""

import json
import os
import select
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest

from tests.trained.models import write_model

Read = Callable[..., str]
"""Reads a bomb: the fixture of this name."""
SIZE = 600_000_000
"""Bytes that a bomb would take."""
SMALL = 20_000_000
"""Bytes that it has on the disk, at most."""
ALLOWED = 100
"""MB that data may take, in these tests."""
GROWTH = 150
"""MB by which a process that refuses may grow: libraries that are loaded late, and a block or a line."""

READER = r"""
import json, os, re, sys, time, traceback
from pathlib import Path
import client.data.raw, client.data.own_data, client.data.to_predict
import numpy, torch, pyarrow.parquet, PIL.Image, PIL.PngImagePlugin, fedappeal.hf.texts
from fedappeal.data.columns import Columns
from fedappeal.data.image_folder import read_images
from fedappeal.data.cells import Classes
from fedappeal.data.read import Features, open_table, read_numbers
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks import load_task
from fedappeal.trained import load_model
task = load_task(TaskSettings(task="digits"))
task.initial_model(0)
# Not `getrusage`, whose figure begins with that of the process which started this one.
highest = lambda: int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024

def read(call, path, allowed):
    os.environ["FEDAPPEAL_MAX_DATA"] = allowed
    before, begun = highest(), time.monotonic()
    try:
        exec(call, {**globals(), "path": path})
        print("it was read")
    except ValueError as error:
        print(error)
    print(highest() - before, time.monotonic() - begun)

for asked in sys.stdin:
    reader = os.fork()
    if not reader:
        try:
            *what, said = json.loads(asked)
            with open(said, "w") as sys.stdout:
                read(*what)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitpid(reader, 0)[1], flush=True)
"""
CHECK = "client.data.own_data.check_own_data(path, Columns(label='y'))"
LOAD = "client.data.own_data.load_own_data(task, path, 'alice')"
CSV = "read_numbers(Features(open_table(Path(path)), ['x']), 'y', Classes((), 10))"
PARQUET = "read_numbers(Features(open_table(Path(path)), ['x']), 'y', Classes((), 10))"
PREDICT = """from fedappeal.trained.card import read_card
list(client.data.to_predict.examples_of(Path(path), read_card(Path(path).with_name('m')), task).batches)"""
TEXTS = "fedappeal.hf.texts.read_table(Path(path), 'x')"
MODEL = "load_model(path)"


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    """Read a bomb in a process of its own; return the line of its refusal, after a look at memory and time.

    The processes are forked from one that has loaded PyTorch: each begins with the memory of a new one.
    """
    said = tmp_path_factory.mktemp("read") / "said"
    command = [sys.executable, "-P", "-c", READER]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def ask(path: Path, call: str, allowed: str = str(ALLOWED)) -> str:
            assert (
                os.stat(path if path.is_file() else max(path.rglob("*.*"), key=os.path.getsize)).st_blocks * 512
                < SMALL
            )
            print(json.dumps([call, str(path), allowed, str(said)]), file=reader.stdin, flush=True)
            assert select.select([reader.stdout], [], [], 120)[0], "it did not end in time"
            assert reader.stdout.readline() == "0\n", "the reader failed: see what it printed"
            *line, figures = said.read_text().splitlines()
            growth, seconds = figures.split()
            assert int(growth) < GROWTH, f"{growth} MB more, {float(seconds):.1f} s: {line}"
            assert len(line) == 1
            assert line[0] != "it was read"
            return line[0]

        yield ask
        reader.kill()


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def write_npz(path: Path, *shape: int) -> Path:
    rows = SIZE // 4 // prod(shape)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("x.npy", "w") as part:
            part.write(npy_header((rows, *shape)))
            for _ in range(SIZE // 1_000_000):
                part.write(bytes(1_000_000))
        with file.open("y.npy", "w") as part:
            np.lib.format.write_array(part, np.zeros(rows, np.uint8))
    return path


@pytest.mark.parametrize("call", [CHECK, LOAD, PREDICT], ids=["check", "load", "predict"])
def test_an_npz(read: Read, tmp_path: Path, call: str) -> None:
    write_model(tmp_path / "m", {})
    line = read(write_npz(tmp_path / "x.npz", 8, 8), call)
    assert (
        "its arrays need 603 MB in memory: at most 100 MB are allowed (environment variable FEDAPPEAL_MAX_DATA"
        in line
    )


@pytest.mark.parametrize("call", [LOAD, PREDICT], ids=["load", "predict"])
def test_an_npz_of_another_shape_than_the_tasks(read: Read, tmp_path: Path, call: str) -> None:
    write_model(tmp_path / "m", {})
    line = read(write_npz(tmp_path / "x.npz", 100), call, "4000")
    assert "x has shape (1500000, 100): (n, 1, 8, 8) or (n, 8, 8) is needed" in line


def test_an_npy(read: Read, tmp_path: Path) -> None:
    with open(tmp_path / "x.npz", "wb") as file:
        file.write(npy_header((SIZE // 4,)))
        file.truncate(SIZE)
    assert read(tmp_path / "x.npz", CHECK).endswith("not an .npz: it holds one array without a name")


def write_csv(path: Path, begin: str) -> Path:
    with open(path, "w") as file:
        file.write(begin)
        file.truncate(SIZE)
    return path


@pytest.mark.parametrize("begin", ["x,y\n1,", ""], ids=["a cell", "the header"])
@pytest.mark.parametrize("call", [CHECK, CSV, TEXTS], ids=["check", "load", "texts"])
def test_a_csv_with_one_huge(read: Read, tmp_path: Path, call: str, begin: str) -> None:
    line = read(write_csv(tmp_path / "x.csv", begin), call)
    assert f"line {begin.count(chr(10)) + 1} is longer than 16,777,216 characters" in line


def test_a_csv_of_more_numbers_than_are_allowed(read: Read, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("x,y\n" + "1,1\n" * 300_000)
    assert "its numbers need 2 MB in memory: at most 1 MB are" in read(tmp_path / "x.csv", CSV, "1")


def write_parquet(path: Path, x: object, y: object, groups: int) -> Path:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"x": x, "y": y})
    with pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd") as file:
        for _ in range(groups):
            file.write_table(table)
    return path


@pytest.mark.parametrize("call", [PARQUET, TEXTS], ids=["load", "texts"])
def test_a_parquet_of_equal_rows(read: Read, tmp_path: Path, call: str) -> None:
    rows = SIZE // 16 // 37
    path = write_parquet(tmp_path / "x.parquet", np.zeros(rows), np.zeros(rows, np.int32), 37)
    assert "in memory: at most 100 MB are allowed" in read(path, call)


@pytest.mark.parametrize("call", [CHECK, TEXTS.replace("'x'", "'y'")], ids=["check", "texts"])
@pytest.mark.parametrize(
    ("length", "count"), [(1_000_000, 600), (200_000_000, 1)], ids=["one many times", "one huge"]
)
def test_a_parquet_of_long_texts(read: Read, tmp_path: Path, call: str, length: int, count: int) -> None:
    path = write_parquet(tmp_path / "x.parquet", np.zeros(count), ["a" * length] * count, 1)
    assert "in memory: at most 100 MB are allowed" in read(path, call)


def varint(number: int) -> bytes:
    """Return a positive integer as Thrift's compact protocol has it."""
    number, written = 2 * number, b""
    while number > 127:
        number, written = number >> 7, written + bytes([128 | number & 127])
    return written + bytes([number])


@pytest.mark.parametrize("call", [CHECK, TEXTS.replace("'x'", "'y'")], ids=["check", "texts"])
def test_a_parquet_whose_footer_says_that_its_pages_are_empty(read: Read, tmp_path: Path, call: str) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"x": [0.0], "y": ["a" * 300_000_000]})
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(table, path, compression="zstd", write_statistics=False, use_dictionary=False)
    size = varint(pyarrow.parquet.read_metadata(path).row_group(0).column(1).total_uncompressed_size)
    content = path.read_bytes()
    assert content.count(size) == 1
    path.write_bytes(content.replace(size, b"\x80" * (len(size) - 1) + b"\0"))
    assert pyarrow.parquet.read_metadata(path).row_group(0).column(1).total_uncompressed_size == 0
    assert "its columns need 301 MB in memory: at most 100 MB are allowed" in read(path, call)


def png(side: int) -> bytes:
    """Return a black image, squeezed."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    deflate = zlib.compressobj(9)
    rows = b"".join(deflate.compress(bytes(1 + 3 * side)) for _ in range(side)) + deflate.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("call", ["load", "predict"])
def test_an_image(read: Read, tmp_path: Path, call: str) -> None:
    (tmp_path / "images" / "0").mkdir(parents=True)
    (tmp_path / "images" / "0" / "a.png").write_bytes(png(13_000))
    write_model(tmp_path / "m", {}, input_shape=(1, 28, 28))
    reading = "read_images(Path(path), (1, 28, 28), (), 10)" if call == "load" else PREDICT
    line = read(tmp_path / "images", reading)
    assert (
        "a.png cannot be read (its 13000 x 13000 pixels need 2,028 MB in memory: at most 100 MB are allowed" in line
    )


def test_more_images_than_fit(read: Read, tmp_path: Path) -> None:
    (tmp_path / "images" / "0").mkdir(parents=True)
    for number in range(20):
        (tmp_path / "images" / "0" / f"{number}.png").write_bytes(png(8))
    reading = "read_images(Path(path), (3, 1600, 1600), (), 10)"
    assert "its images need 615 MB in memory: at most 100 MB are allowed" in read(tmp_path / "images", reading)


def write_sparse_model(path: Path, size: int) -> Path:
    """Write a model's file with one huge array that is a hole in the file."""
    write_model(path, {"output.bias": np.zeros(10, np.float32)}, shared=("output.bias",))
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    for key in ("fedappeal-format", "fedappeal-checksum"):
        del header["__metadata__"][key]  # a file of another program has none
    header["output.bias"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    return path


def test_a_model_of_another_shape_than_the_tasks(read: Read, tmp_path: Path) -> None:
    path = write_sparse_model(tmp_path / "m", SIZE)
    assert read(path, MODEL).endswith("'output.bias' has shape (150000000,), not (10,)")


def test_a_file_of_arrays_that_no_memory_holds(read: Read, tmp_path: Path) -> None:
    path = write_sparse_model(tmp_path / "m", 1 << 40)
    line = read(path, "from fedappeal.system.files import read_safetensors\nread_safetensors(Path(path))")
    assert "it needs 2,199,023 MB in memory: this machine has " in line
