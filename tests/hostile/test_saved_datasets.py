"""Promise: a folder that `datasets` saved, from a stranger, crashes, fills and runs nothing: a line refuses it."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import ipc

from fedappeal.data.cells import Classes
from fedappeal.data.read import Features, open_table, read_numbers
from tests.hostile.test_bombs import CHECK, CSV, TEXTS, Read, read  # noqa: F401  # a fixture

ROWS = 75_000_000
"""Of a number each: more than half a GB."""
FILE = "data-00000-of-00001.arrow"


def save(folder: Path, batch: Any, **options: Any) -> None:
    with ipc.new_stream(str(folder / FILE), batch.schema, options=ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(batch)


def batch(x: Any, **more: Any) -> Any:
    return pyarrow.record_batch({"x": x, "y": more.get("y", pyarrow.array(np.zeros(len(x), np.int32)))})


def compressed(folder: Path) -> None:
    save(folder, batch(np.zeros(ROWS)), compression="zstd")


def compressed_names(folder: Path) -> None:
    names = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0], pyarrow.int8()), pyarrow.array(["a" * 8 * ROWS]))
    save(folder, batch(names), compression="zstd")


def nulls(folder: Path) -> None:
    save(folder, batch(pyarrow.nulls(10**9), y=pyarrow.nulls(10**9)))


def many_of_one_text(folder: Path) -> None:
    places = pyarrow.array(np.zeros(10**6, np.int8))
    texts = pyarrow.DictionaryArray.from_arrays(places, pyarrow.array(["a" * 10_000]))
    save(folder, batch(texts, y=texts))


def texts_that_lie_elsewhere(folder: Path) -> None:
    _, offsets, content = pyarrow.array(["abc", "def", "x"]).buffers()
    wrong = np.frombuffer(offsets, np.int32).copy()
    wrong[1:3] = 2**30, 2**31 - 6
    save(folder, batch(pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, pyarrow.py_buffer(wrong), content])))


def more_rows_than_bytes(folder: Path) -> None:
    save(folder, batch(np.zeros(1000)))
    content = (folder / FILE).read_bytes()
    assert content.count(struct.pack("<q", 1000)) > 1
    (folder / FILE).write_bytes(content.replace(struct.pack("<q", 1000), struct.pack("<q", 3_000_000)))


def pipe(folder: Path) -> None:
    os.mkfifo(folder / FILE)


def holes_in_the_state(folder: Path) -> None:
    save(folder, batch(np.zeros(1)))
    os.truncate(folder / "state.json", 5 << 30)


LARGE = "100 MB are allowed"
SAVED: dict[Callable[[Path], None], str] = {
    compressed: "its batches are compressed: datasets saves none so",
    compressed_names: "its batches are compressed: datasets saves none so",
    nulls: LARGE,
    many_of_one_text: LARGE,
    texts_that_lie_elsewhere: "it cannot be read (In column 0: Invalid: Offset invariant failure",
    more_rows_than_bytes: "it cannot be read (In column 0: Invalid: Buffer #1 too small",
    pipe: f"its {FILE} is no file",
    holes_in_the_state: "(state.json is longer than 16,777,216 characters)",
}


def folder_of(tmp_path: Path, write: Callable[[Path], None]) -> Path:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": FILE}]}))
    write(folder)
    return folder


@pytest.mark.parametrize("call", [CSV, TEXTS, CHECK], ids=["load", "texts", "check"])
@pytest.mark.parametrize("write", SAVED, ids=lambda write: write.__name__)
def test_it_is_refused_in_one_line(read: Read, tmp_path: Path, call: str, write: Callable[[Path], None]) -> None:  # noqa: F811
    line = read(folder_of(tmp_path, write), call)
    assert SAVED[write] in line


def test_what_it_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script beside it, a feature's class, sizes in its `dataset_info.json`, and pyarrow's types in a pickle."""

    def write(folder: Path) -> None:
        ran = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        for script in ("saved.py", "trap_module.py"):
            (folder / script).write_text(ran)
        (folder / "dataset_info.json").write_text(json.dumps({"dataset_size": 10**18, "builder_name": "saved"}))
        pickled = {
            b"ARROW:extension:name": b"arrow.py_extension_type",
            b"ARROW:extension:metadata": b"ctrap_module\nanything\n.",
        }
        features = {"x": {"_type": "trap_module.anything"}, "y": {"_type": "ClassLabel", "names": ["no", "yes"]}}
        schema = pyarrow.schema(
            [pyarrow.field("x", pyarrow.float64(), metadata=pickled), ("y", pyarrow.int64())],
            metadata={b"huggingface": json.dumps({"info": {"features": features}}).encode()},
        )
        save(folder, pyarrow.record_batch([pyarrow.array([0.5, 1.5]), pyarrow.array([0, 1])], schema=schema))

    folder = folder_of(tmp_path, write)
    monkeypatch.syspath_prepend(str(folder))
    x, *_, y = read_numbers(Features(open_table(folder), ["x"]), "y", Classes((), 2))
    assert (np.ravel(x).tolist(), y.tolist()) == ([0.5, 1.5], [0.0, 1.0])
    assert not (tmp_path / "ran").exists()
