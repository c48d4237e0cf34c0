"""A volunteer's table: which columns are read, in which numbers, and one line for each cell that does not fit."""

import csv
import re
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from client.data.columns import Columns, OwnDataError
from client.data.own_data import check_own_data, load_own_data
from fedappeal.protocol.draws import generator
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.task import ClientData, Task

BEDS = Columns(label="kind")


class Plants(Task):
    """Two measures of a plant; centred, so that it shows that the task scales them."""

    input_shape, num_classes = (2,), 3
    class_names = ("moss", "fern", "oak")

    def initial_model(self, seed: int) -> Any: ...

    def load(self, client: int) -> Any: ...

    def inputs(self, raw: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(raw.astype(np.float32)) - 1


class Named(Plants):
    feature_names = ("height", "width")


class Price(Plants):
    num_classes, class_names = 0, ()


SETTINGS = TaskSettings(task="plants:Plants", train_share=0.5, min_examples=2, seed=3)
PLANTS = Plants(SETTINGS)


def write(folder: Path, *lines: str, name: str = "mine.csv") -> str:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def in_order(data: ClientData, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of train and test, in the table's order."""
    order = generator(3, "split", client="anna").permutation(rows)
    x, y = (torch.cat([getattr(data.train, part), getattr(data.test, part)]).numpy() for part in ("x", "y"))
    assert len(data.train) == rows // 2
    back = np.argsort(order)
    return x[back], y[back]


def loaded(path: str, columns: Columns, rows: int, task: Task = PLANTS) -> tuple[list[list[float]], list[float]]:
    check_own_data(path, columns)
    x, y = in_order(load_own_data(task, path, "anna", columns), rows)
    assert (x.dtype, y.dtype) == (np.float32, np.int64 if task.num_classes else np.float32)
    return x.tolist(), y.tolist()


@pytest.mark.parametrize(
    ("lines", "columns"),
    [
        (["height,width,kind", "1.5,2,moss", "3,4,oak"], BEDS),
        (["kind,height,width", "0,1.5,2", "2,3,4"], BEDS),
        (["kind;height;width", "0;1.5;2", "2;3;4"], BEDS),
        (["kind\theight\twidth", "0.0\t1.5\t2", "2\t3\t4"], BEDS),
        (['"kind", "height", "width"', '"moss", "1.5", 2', "", "oak, 3, 4"], BEDS),
        (["\ufeffheight,width,kind", "1.5,2e0,moss", "3.,+4,2"], BEDS),
        (["note,width,height,kind", "dry,2,1.5,0", "wet,4,3,2"], Columns(("height", "width"), "kind")),
        (['"a,b",width,c,kind', '1.5,2,"x', 'y",0', "3,4,,oak"], Columns(("a,b", "width"), "kind")),
    ],
)
def test_a_csv_is_read_whatever_its_order_and_its_delimiter(
    lines: list[str], columns: Columns, tmp_path: Path
) -> None:
    # Scaled by the task: 1 less.
    assert loaded(write(tmp_path, *lines), columns, 2) == ([[0.5, 1.0], [2.0, 3.0]], [0, 2])


def test_the_tasks_names_choose_the_columns_and_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, "width,note,height,kind", "2,dry,1.5,moss", "4,wet,3,oak")
    assert loaded(path, BEDS, 2, Named(SETTINGS))[0] == [[0.5, 1.0], [2.0, 3.0]]
    # The owner may call them otherwise.
    path = write(tmp_path, "w,h,kind", "2,1.5,moss", "4,3,oak")
    assert loaded(path, Columns(("h", "w"), "kind"), 2, Named(SETTINGS))[0] == [[0.5, 1.0], [2.0, 3.0]]
    with pytest.raises(OwnDataError, match=r"it has no column height and no column width \(its header: w, h, kind\)"):
        load_own_data(Named(SETTINGS), path, "anna", BEDS)


def test_labels_that_are_no_classes_are_floats(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,price", "1,2,10", "3,4,-0.25")
    assert loaded(path, Columns(label="price"), 2, Price(SETTINGS)) == ([[0, 1], [2, 3]], [10.0, -0.25])


def test_whole_numbers_are_the_tasks_pixels_as_they_are(tmp_path: Path) -> None:
    digits = load_task(TaskSettings(task="digits", train_share=0.5, min_examples=2, seed=3))
    pixels = np.random.default_rng(0).integers(0, 17, (4, 64))
    header = ",".join([*(f"p{k}" for k in range(64)), "digit"])
    for scale in (1, 16):
        rows = [",".join(map(str, [*(row / scale if scale > 1 else row), 7])) for row in pixels]
        x, y = loaded(write(tmp_path, header, *rows), Columns(label="digit"), 4, digits)
        expected = ((pixels / 16 - 0.3053) / 0.3760).reshape(4, 1, 8, 8)
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
        assert y == [7] * 4


def test_a_parquet_file_holds_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "mine.parquet")
    for labels in (["moss", "oak"], pyarrow.array(["moss", "oak"]).dictionary_encode(), [0, 2], [0.0, 2.0]):
        table = pyarrow.table(
            {
                "note": ["a", None],
                "kind": labels,
                "height": [1.5, 3.0],
                "width": pyarrow.array([2, 4], pyarrow.int8()),
            }
        )
        pyarrow.parquet.write_table(table, path)
        assert loaded(path, Columns(("height", "width"), "kind"), 2) == ([[0.5, 1.0], [2.0, 3.0]], [0, 2])
        assert loaded(path, BEDS, 2, Named(SETTINGS))[0] == [[0.5, 1.0], [2.0, 3.0]]


def test_a_parquet_file_of_several_batches_is_read_in_order(tmp_path: Path) -> None:
    count = 70_000
    table = pyarrow.table({"a": np.arange(count), "b": np.arange(count) / 2, "kind": np.arange(count) % 3})
    path = str(tmp_path / "mine.parquet")
    pyarrow.parquet.write_table(table, path)
    x, y = in_order(load_own_data(PLANTS, path, "anna", BEDS), count)
    assert np.array_equal(x, np.stack([np.arange(count) - 1, np.arange(count) / 2 - 1], axis=1).astype(np.float32))
    assert np.array_equal(y, np.arange(count) % 3)


HEADER = "height,width,kind"
GOOD = "1,2,moss"


def refused(
    path: str, columns: Columns, expected: str, problem: DataProblem, known: bool, task: Task = PLANTS
) -> None:
    """Both checks say the same, or that of the start says nothing as yet."""
    acts = [lambda: load_own_data(task, path, "anna", columns)]
    acts += [lambda: check_own_data(path, columns)] if known else []  # type: ignore[list-item, return-value]
    for act in acts:
        with pytest.raises(OwnDataError) as caught:
            act()
        assert str(caught.value).startswith(f"data = '{path}' is not allowed: {expected}"), caught.value
        assert "\n" not in str(caught.value)
        assert caught.value.problem is problem
    if not known:
        check_own_data(path, columns)


@pytest.mark.parametrize(
    ("lines", "columns", "expected", "problem"),
    [
        ([], BEDS, "its first line holds no names of columns", DataProblem.COLUMNS),
        (
            [HEADER, GOOD],
            Columns(),
            "label is missing: which column holds the labels (height, width, kind)",
            "columns",
        ),
        ([HEADER, GOOD], Columns(label="y"), "it has no column y (its header: height, width, kind)", "columns"),
        (["1,2,3", "4,5,0"], BEDS, "it has no column kind (its header: 1, 2, 3)", "columns"),
        (
            [HEADER, GOOD],
            Columns(("a", "width", "b"), "kind"),
            "it has no column a and no column b (its header: height, width, kind)",
            "columns",
        ),
        (["a,a,kind", GOOD], BEDS, "2 of its columns are called a", "columns"),
        ([",a,kind", "0,1,moss"], BEDS, "column 1 has no name: choose the features (features)", "columns"),
        (["kind", "moss"], BEDS, "it has no column but kind: features are needed", "columns"),
        ([HEADER, GOOD, "1,2"], BEDS, "row 2 (line 3) has 2 cells, the header 3", "shape"),
        ([HEADER, "", GOOD, "1,2,3,moss"], BEDS, "row 2 (line 4) has 4 cells, the header 3", "shape"),
        ([HEADER, GOOD, "1,2, "], BEDS, "row 2 (line 3), column kind: the cell is empty", "labels"),
        ([HEADER, GOOD, '"1,2,moss'], BEDS, "it is no CSV that can be read (unexpected end of data)", "unreadable"),
    ],
)
def test_what_is_wrong_without_a_task_is_said_at_the_start(
    lines: list[str], columns: Columns, expected: str, problem: str, tmp_path: Path
) -> None:
    refused(write(tmp_path, *lines), columns, expected, DataProblem(problem), known=True)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("", "the cell is empty"),
        (" ", "the cell is empty"),
        ("tall", "'tall' is no finite number"),
        ("1;5", "'1;5' is no finite number"),
        ("nan", "'nan' is no finite number"),
        ("-inf", "'-inf' is no finite number"),
        ("1e999", "'1e999' is no finite number"),
    ],
)
def test_a_cell_without_a_number_is_named_by_row_and_column(cell: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, GOOD, "", f"1,{cell},oak", GOOD)
    told = f"row 2 (line 4), column width: {expected}"
    # At the start it is not known whether the task wants all columns, unless the owner says so.
    refused(path, BEDS, told, DataProblem.VALUES, known=False)
    refused(path, Columns(("height", "width"), "kind"), told, DataProblem.VALUES, known=True)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("3", "label '3': 0 to 2, or moss, fern, oak are allowed"),
        ("-1", "label '-1': 0 to 2, or moss, fern, oak are allowed"),
        ("1.5", "label '1.5': 0 to 2"),
        ("Moss", "label 'Moss': 0 to 2"),
        ("nan", "label 'nan': 0 to 2"),
    ],
)
def test_a_label_that_the_task_does_not_have(label: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, GOOD, f"1,2,{label}")
    refused(path, BEDS, f"row 2 (line 3), column kind: {expected}", DataProblem.LABELS, known=False)


def test_other_things_that_only_the_task_tells(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,c,kind", "1,2,3,moss", "1,2,3,moss")
    told = "3 columns of features, where the task's inputs have shape (2,): 2 are needed (features names them)"
    refused(path, BEDS, told, DataProblem.SHAPE, known=False)
    path = write(tmp_path, HEADER, GOOD)
    refused(path, BEDS, "1 examples are fewer than min-examples = 2", DataProblem.TOO_FEW, known=False)
    path = write(tmp_path, HEADER)
    refused(path, BEDS, "0 examples are fewer than min-examples = 2", DataProblem.TOO_FEW, known=False)
    path = write(tmp_path, HEADER, GOOD, "1,2,x", GOOD)
    told = "row 2 (line 3), column kind: label 'x' is no finite number"
    refused(
        path,
        BEDS,
        told.replace("'x'", "'moss'").replace("row 2 (line 3)", "row 1 (line 2)"),
        DataProblem.LABELS,
        known=False,
        task=Price(SETTINGS),
    )


class NotTaking(Plants):
    inputs = Task.inputs  # type: ignore[assignment]


class Broken(Plants):
    def inputs(self, raw: np.ndarray) -> torch.Tensor:
        raise KeyError("patients")


def test_a_task_that_takes_no_data_or_fails(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, GOOD, GOOD)
    told = "task 'plants:Plants' takes no data of a client's own"
    refused(path, BEDS, told, DataProblem.NOT_TAKEN, known=False, task=NotTaking(SETTINGS))
    told = "its inputs failed: KeyError: 'patients'"
    refused(path, BEDS, told, DataProblem.VALUES, known=False, task=Broken(SETTINGS))


def test_a_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes("height,width,kind\n1,2,größe\n".encode("latin-1"))
    refused(str(path), BEDS, "it is no text in UTF-8 (invalid", DataProblem.UNREADABLE, known=True)


@pytest.mark.parametrize(
    ("table", "columns", "expected", "problem"),
    [
        ({"h": [1, 2], "kind": [0, 1]}, BEDS, "1 columns of features", "shape"),
        (
            {"h": [1, 2], "w": ["a", "b"], "kind": [0, 1]},
            BEDS,
            "column w holds string: numbers are allowed",
            "values",
        ),
        ({"h": [1, 2], "w": [1, None], "kind": [0, 1]}, BEDS, "row 2, column w: the cell is empty", "values"),
        (
            {"h": [1, 2], "w": [1, float("nan")], "kind": [0, 1]},
            BEDS,
            "row 2, column w: 'nan' is no finite number",
            "values",
        ),
        ({"h": [1, 2], "w": [1, 2], "kind": [0, 7]}, BEDS, "row 2, column kind: label '7': 0 to 2", "labels"),
        ({"h": [1, 2], "w": [1, 2], "kind": ["oak", "elm"]}, BEDS, "row 2, column kind: label 'elm': 0", "labels"),
    ],
)
def test_a_parquet_file_that_does_not_fit(
    table: dict[str, Sequence[object]], columns: Columns, expected: str, problem: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "mine.parquet")
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    refused(path, columns, expected, DataProblem(problem), known=False)
    if problem == "values":
        refused(path, Columns(("h", "w"), "kind"), expected, DataProblem(problem), known=True)


def test_what_is_wrong_with_a_parquet_file_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "mine.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"h": [1, 2], "w": [1, 2], "kind": [0, None]}), path)
    refused(path, BEDS, "row 2, column kind: the cell is empty", DataProblem.LABELS, known=True)
    refused(path, Columns(label="y"), "it has no column y (its header: h, w, kind)", DataProblem.COLUMNS, known=True)
    Path(path).write_text("height,width\n1,2\n")
    refused(path, BEDS, "it is no Parquet file that can be read (Parquet magic", DataProblem.UNREADABLE, known=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = "a .parquet needs pyarrow: pip install 'fedappeal[tables]' (a .csv needs nothing)"
    refused(path, BEDS, told, DataProblem.UNREADABLE, known=True)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "mine.csv")
    refused(path, BEDS, "no such file or folder", DataProblem.UNREADABLE, known=True)


def test_a_large_csv_needs_a_small_multiple_of_its_size(tmp_path: Path) -> None:
    path, rows = tmp_path / "large.csv", 20_000
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*(f"c{k}" for k in range(40)), "kind"])
        numbers = np.random.default_rng(0).random((rows, 40)).round(3)
        out.writerows([*row, k % 3] for k, row in enumerate(numbers.tolist()))

    class Wide(Plants):
        input_shape = (40,)

    size = path.stat().st_size
    tracemalloc.start()
    data = load_own_data(Wide(SETTINGS), str(path), "anna", BEDS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = sum(part.x.numpy().nbytes for part in (data.train, data.test))  # type: ignore[union-attr]
    assert held == rows * 40 * 4
    assert peak < 4 * size, f"{peak / size:.1f} times {size} bytes"


@pytest.mark.parametrize(
    ("features", "label", "expected"),
    [
        ("a,,b", "y", "features = 'a,,b' is not allowed: a name is empty (names of columns, by commas)"),
        ("a,b,a", "y", "features = 'a,b,a' is not allowed: 'a' is named twice"),
        ("a,b", "b", "label = 'b' is not allowed: it is one of the features = 'a,b'"),
    ],
)
def test_columns_that_cannot_be_meant(features: str, label: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        Columns.parse(features, label)
    assert Columns.parse(' a , "b,c"', "y") == Columns(("a", "b,c"), "y")
    assert Columns.parse("", "y") == Columns((), "y")
