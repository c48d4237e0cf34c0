"""A volunteer's table: which columns are read, in which numbers, and one line for each cell that does not fit."""

import csv
import json
import re
import sys
import tracemalloc
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from client.data.own_data import check_own_data, load_own_data
from client.data.refused import OwnDataError
from fedappeal.data.columns import Columns
from fedappeal.protocol.draws import generator
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import with_held_out
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
        (["kind,a,kind", GOOD], BEDS, "2 of its columns are called kind", "columns"),
        (["a,a,kind", GOOD], Columns(("a",), "kind"), "2 of its columns are called a", "columns"),
        ([HEADER, GOOD, "1,2"], BEDS, "row 2 (line 3) has 2 cells, the header 3", "shape"),
        ([HEADER, "", GOOD, "1,2,3,moss"], BEDS, "row 2 (line 4) has 4 cells, the header 3", "shape"),
        ([HEADER, GOOD, "1,2, "], BEDS, "row 2 (line 3), column kind: the cell is empty", "labels"),
        (
            [HEADER, GOOD, '"1,2,moss'],
            BEDS,
            "it is no CSV that can be read (unexpected end of data, in line",
            "unreadable",
        ),
        ([HEADER, '"1,2,moss', '"3,4,oak'], BEDS, "it is no CSV that can be read (',' expected", "unreadable"),
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
        ('"1,5"', "'1,5' is no finite number: decimals have a point"),
        ("1_5", "'1_5' is no finite number"),
        ("\uff11", "'\uff11' is no finite number"),
        ("infinity", "'infinity' is no finite number"),
        ("0x10", "'0x10' is no finite number"),
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


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a,a,kind", GOOD], "2 of its columns are called a"),
        ([",a,kind", "0,1,moss"], "column 1 has no name: choose the features (features)"),
        (["kind", "moss"], "it has no column but kind: features are needed"),
    ],
)
def test_columns_that_only_a_task_without_names_needs(lines: list[str], expected: str, tmp_path: Path) -> None:
    refused(write(tmp_path, *lines), BEDS, expected, DataProblem.COLUMNS, known=False)


@pytest.mark.parametrize("header", [",height,width,kind", "note,height,width,kind,note", "height,width,kind,"])
def test_columns_that_are_not_used_may_have_no_name_or_one_name(header: str, tmp_path: Path) -> None:
    cells = {"height": ("1.5", "3"), "width": ("2", "4"), "kind": ("moss", "oak")}
    rows = [",".join(cells.get(name, ("x", "y"))[row] for name in header.split(",")) for row in (0, 1)]
    expected = ([[0.5, 1.0], [2.0, 3.0]], [0, 2])
    assert loaded(write(tmp_path, header, *rows), BEDS, 2, Named(SETTINGS)) == expected


def test_all_problems_of_a_table_are_one_message(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, "1,,elm", "1_5,2", "1_5,tall,oak", "1_0,,moss", "1")
    told = (
        "row 1 (line 2), column width: the cell is empty (and 1 more of its rows); "
        "row 1 (line 2), column kind: label 'elm': 0 to 2, or moss, fern, oak are allowed; "
        "row 2 (line 3) has 2 cells, the header 3 (and 1 more of its rows); "
        "row 3 (line 4), column height: '1_5' is no finite number (and 1 more of its rows); "
        "row 3 (line 4), column width: 'tall' is no finite number"
    )
    with pytest.raises(OwnDataError) as caught:
        load_own_data(PLANTS, path, "anna", BEDS)
    assert sorted(str(caught.value).removeprefix(f"data = '{path}' is not allowed: ").split("; ")) == sorted(
        told.split("; ")
    )


@pytest.mark.parametrize(
    ("names", "cells"),
    [
        (("1", "2", "3"), ("1", "1.0", " 1 ", "01", "1e0")),
        (("0", "1"), ("0", "0.0", "False", "false")),
        (("False", "True"), ("False", "0", "0.0", "FALSE")),
        (("moss", "fern"), ("moss", "0", "0.0", " moss ")),
        (("1.0", "2.0"), ("1", "1.0")),
    ],
)
def test_a_class_has_one_meaning_however_it_is_written(
    names: tuple[str, ...], cells: tuple[str, ...], tmp_path: Path
) -> None:
    class Graded(Plants):
        num_classes, class_names = len(names), names

    rows = [f"1,2,{cell}" for cell in cells]
    task = Graded(SETTINGS)
    assert loaded(write(tmp_path, HEADER, *rows), BEDS, len(rows), task)[1] == [0] * len(rows)
    first = names[0]
    typed: list[Any] = [[first, first], pyarrow.array([first, first]).dictionary_encode()]
    if first[0].isdigit():
        typed += [[int(float(first))] * 2, [float(first)] * 2, pyarrow.array([Decimal(first)] * 2)]
    if first == "False":
        typed += [[False, False]]
    for labels in typed:
        pyarrow.parquet.write_table(pyarrow.table({"h": [1, 2], "w": [1, 2], "kind": labels}), tmp_path / "m.parquet")
        assert loaded(str(tmp_path / "m.parquet"), BEDS, 2, task)[1] == [0, 0]


def test_where_classes_are_called_by_numbers_there_are_no_others(tmp_path: Path) -> None:
    class Stars(Plants):
        class_names = ("1", "2", "3")

    path = write(tmp_path, HEADER, GOOD.replace("moss", "1"), "1,2,0")
    told = "row 2 (line 3), column kind: label '0': 1, 2, 3 are allowed"
    refused(path, BEDS, told, DataProblem.LABELS, known=False, task=Stars(SETTINGS))


def test_labels_that_start_from_1_are_said(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, *(f"1,2,{label}" for label in (1, 2, 3)))
    told = (
        "row 3 (line 4), column kind: label '3': 0 to 2, or moss, fern, oak are allowed; do the table's labels start"
    )
    refused(path, BEDS, told, DataProblem.LABELS, known=False)


def test_the_class_names_that_datasets_records_count(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    kinds = Features(
        {"h": Value("float32"), "w": Value("float32"), "kind": ClassLabel(names=["oak", "fern", "moss"])}
    )
    saved = Dataset.from_dict({"h": [1.5, 3], "w": [2, 4], "kind": [2, 0]}, kinds)
    saved.save_to_disk(tmp_path / "saved")
    saved.to_parquet(str(tmp_path / "saved.parquet"))
    for name in ("saved", "saved.parquet"):
        assert loaded(str(tmp_path / name), BEDS, 2) == ([[0.5, 1.0], [2.0, 3.0]], [0, 2])


def test_json_lines_are_a_table_too(tmp_path: Path) -> None:
    lines = ('{"kind": "moss", "height": 1.5, "width": 2}', '{"width": "4", "note": [1], "kind": 2, "height": 3}')
    assert loaded(write(tmp_path, *lines, name="m.jsonl"), Columns(("height", "width"), "kind"), 2)[1] == [0, 2]
    path = write(tmp_path, *lines, '{"width": 4, "kind": 2}', name="m.jsonl")
    told = "row 3 (line 3), column height: the cell is empty"
    refused(path, Columns(("height", "width"), "kind"), told, DataProblem.VALUES, known=True)


def test_a_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("height,width,kind\n1,2,0\n", encoding="utf-16")
    refused(str(path), BEDS, "it is a text in UTF-16: UTF-8 is needed", DataProblem.UNREADABLE, known=True)
    path.write_bytes("height,width,kind\n1,2,größe\n".encode("latin-1"))
    refused(str(path), BEDS, "it is no text in UTF-8 (invalid", DataProblem.UNREADABLE, known=True)
    for delimiter in ("sep=,", '"sep=;"', "SEP=\t"):
        path.write_text(f"{delimiter}\nheight,width,kind\n1,2,0\n", encoding="utf-8-sig")
        refused(str(path), BEDS, "its first line is Excel's 'sep='", DataProblem.COLUMNS, known=True)


@pytest.mark.parametrize(
    ("table", "columns", "expected", "problem"),
    [
        ({"h": [1, 2], "kind": [0, 1]}, BEDS, "1 columns of features", "shape"),
        (
            {"h": [1, 2], "w": ["a", "b"], "kind": [0, 1]},
            BEDS,
            "row 1, column w: 'a' is no finite number (and 1 more of its rows)",
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
    if problem == "values":  # a column of texts alone may be a task's categories
        known = table["w"] != ["a", "b"]
        refused(path, Columns(("h", "w"), "kind"), expected, DataProblem(problem), known)


def test_what_is_wrong_with_a_parquet_file_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "mine.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"h": [1, 2], "w": [1, 2], "kind": [0, None]}), path)
    refused(path, BEDS, "row 2, column kind: the cell is empty", DataProblem.LABELS, known=True)
    refused(path, Columns(label="y"), "it has no column y (its header: h, w, kind)", DataProblem.COLUMNS, known=True)
    Path(path).write_text("height,width\n1,2\n")
    refused(path, BEDS, "it cannot be read (Parquet magic", DataProblem.UNREADABLE, known=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = "a .parquet file or a saved dataset needs pyarrow (a .csv or .jsonl needs nothing): pip install"
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


class AsItIs(Plants):
    def inputs(self, raw: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(raw.astype(np.float32))


def test_a_table_is_standardised_by_its_training_rows_where_the_task_takes_it_as_it_is(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal([1e7, 60], 15, (40, 2)).round(2)
    path = write(tmp_path, HEADER, *(f"{a},{b},{k % 3}" for k, (a, b) in enumerate(x.tolist())))
    pyarrow.parquet.write_table(
        pyarrow.table({"height": x[:, 0], "width": x[:, 1], "kind": [k % 3 for k in range(40)]}),
        tmp_path / "m.parquet",
    )
    train = generator(3, "split", client="anna").permutation(40)[:20]
    expected = (x - x[train].mean(axis=0)) / x[train].std(axis=0)
    for source in (path, str(tmp_path / "m.parquet")):
        data = load_own_data(AsItIs(SETTINGS), source, "anna", BEDS)
        np.testing.assert_allclose(in_order(data, 40)[0], expected, rtol=1e-4, atol=1e-5)
        assert data.scaling is not None
        assert with_held_out(data).to(torch.device("cpu")).scaling == data.scaling
        np.testing.assert_allclose(data.scaling.mean, x[train].mean(axis=0))
    plain = load_own_data(AsItIs(SETTINGS.model_copy(update={"scale": "none"})), path, "anna", BEDS)
    assert plain.scaling is None
    assert plain.fingerprint != data.fingerprint  # by which requirements are stored
    np.testing.assert_array_equal(in_order(plain, 40)[0], x.astype(np.float32))
    assert load_own_data(PLANTS, path, "anna", BEDS).scaling is None  # it scales itself
    asked = load_own_data(Plants(SETTINGS.model_copy(update={"scale": "standard"})), path, "anna", BEDS)
    np.testing.assert_allclose(in_order(asked, 40)[0][:, 1], expected[:, 1], rtol=1e-4, atol=1e-5)


class Shirts(AsItIs):
    feature_names, input_shape = ("height", "size"), (4,)
    categories: ClassVar = {"size": ("s", "3+", "")}


def shirts(folder: Path, sizes: Sequence[str | None]) -> list[str]:
    """The same rows in each format."""
    heights, kinds = [1.5, *range(2, len(sizes) + 1)], [k % 3 for k in range(len(sizes))]
    columns = {"size": sizes, "kind": kinds, "height": heights}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "s.parquet")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    lines = [
        "size,kind,height",
        *(f"{size or ''},{kind},{height}" for size, kind, height in zip(*columns.values(), strict=True)),
    ]
    return [
        write(folder, *lines),
        write(folder, *map(json.dumps, rows), name="s.jsonl"),
        str(folder / "s.parquet"),
    ]


def test_the_tasks_categories_are_a_column_for_each_value_in_every_format(tmp_path: Path) -> None:
    task = Shirts(SETTINGS.model_copy(update={"scale": "none"}))
    expected = [[1.5, 1, 0, 0], [2, 0, 1, 0], [3, 0, 0, 1], [4, 1, 0, 0]]
    for path in shirts(tmp_path, ["s", "3+", None, "s"]):
        assert loaded(path, BEDS, 4, task)[0] == expected
    path = write(tmp_path, "size,kind,height", "s,0,1.5", "s,1,2")
    assert loaded(path, Columns(("height", "size"), "kind"), 2, task)[0] == [[1.5, 1, 0, 0], [2, 1, 0, 0]]
    assert task.fingerprint != AsItIs(task.settings).fingerprint

    class Other(Shirts):
        categories: ClassVar = {"size": ("s", "", "3+")}

    assert Other(task.settings).fingerprint != task.fingerprint


def test_a_category_of_many_values_is_refused_before_it_takes_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wide(Shirts):
        input_shape, categories = (1_000_001,), {"size": tuple(map(str, range(1_000_000)))}

    monkeypatch.setenv("FEDAPPEAL_MAX_DATA", "1")
    for path in shirts(tmp_path, ["1", "2", "3"]):
        with pytest.raises(OwnDataError, match="its numbers need 25 MB in memory: at most 1 MB are allowed"):
            load_own_data(Wide(SETTINGS), path, "anna", BEDS)


def test_values_that_the_task_does_not_name_are_said_with_all_that_is_wrong(tmp_path: Path) -> None:
    class Strict(Shirts):
        input_shape, categories = (3,), {"size": ("s", "3+")}

    task = Strict(SETTINGS)
    for path in shirts(tmp_path, ["s", "XL", None, "0", "XL"]):
        first = 3 if path.endswith("csv") else 2
        lines = [f" (line {first + k})" if not path.endswith("parquet") else "" for k in range(2)]
        empty = f"row 3{lines[1]}, column size: the cell is empty"
        others = f"row 2{lines[0]}, column size: 'XL' is none of its values: s, 3+ (and 2 more of its rows)"
        refused(path, BEDS, f"{empty}; {others}", DataProblem.VALUES, False, task)
    wide = "3 columns of features, one a value of each category, where the task's inputs have shape (9,)"
    refused(path, BEDS, wide, DataProblem.SHAPE, False, type("Wide", (Strict,), {"input_shape": (9,)})(SETTINGS))


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
