"""Tables of texts: each kind of file, and what cannot be read."""

import json
from pathlib import Path

import pytest

from fedappeal.hf.texts import read_table

ROWS = [("a text, with a comma", "no", "ann"), ("zwei\nZeilen", "1", "bob"), ("third", "yes", "ann")]


def write(path: Path) -> Path:
    columns = {name: [row[k] for row in ROWS] for k, name in enumerate(("said", "label", "user"))}
    if path.suffix == ".csv":
        path.write_text("said,label,user\n" + "".join(f'"{a}",{b},{c}\n' for a, b, c in ROWS))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in ROWS))
    elif path.suffix == ".parquet":
        from pyarrow import parquet, table

        parquet.write_table(table(columns), path)
    else:
        from datasets import Dataset

        Dataset.from_dict(columns).save_to_disk(path)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "folder"])
def test_each_kind_of_table(tmp_path: Path, name: str) -> None:
    found = read_table(write(tmp_path / name), "said", "label", ("no", "yes"), "user")
    assert list(found.texts) == [text for text, _, _ in ROWS]
    assert found.labels.tolist() == [0, 1, 1]
    assert list(found.owners) == ["ann", "bob", "ann"]
    assert read_table(tmp_path / name, "said").labels.tolist() == [0, 0, 0]


def test_a_name_counts_before_a_number(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nx,1\nx,5\nx,3\n")
    assert read_table(tmp_path / "t.csv", "text", "label", ("1", "2", "3", "4", "5")).labels.tolist() == [0, 4, 2]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.txt", "text\nx\n", "no table: .csv"),
        ("t.csv", "text,label\n", "it has no rows"),
        ("t.csv", "text\nx\n", r"it has no column label \(its header: text\)"),
        ("t.csv", "label,text\n0,x\n1\n", r"row 2 \(line 3\) has 1 cells, the header 2"),
        ("t.csv", "text,label\na, b,0\n", r"row 1 \(line 2\) has 3 cells, the header 2"),
        ("t.csv", 'text,label\n"a,0\nb,1\n', "it is no CSV that can be read"),
        ("t.csv", 'text,label\n"5" tv,0\nb,1\n', "it is no CSV that can be read"),
        ("t.csv", "label,text,label\n0,x,1\n", "2 of its columns are called label"),
        ("t.csv", 'text,label\n"  ",0\n', r"row 1 \(line 2\), column text: the cell is empty"),
        (
            "t.csv",
            "text,label\nx,0\nx,2\n",
            "row 2 \\(line 3\\), column label: label '2': 0 to 1, or no, yes are allowed",
        ),
        ("t.jsonl", '{"text": "x", "label": 0}\n{"text"\n', "line 2 is not JSON"),
        ("t.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("t.jsonl", '{"text": 3, "label": 0}\n', r"row 1 \(line 1\), column text: 3 is no text"),
        ("t.parquet", "no parquet", "it cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: str, expected: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=expected):
        read_table(tmp_path / name, "text", "label", ("no", "yes"))


def test_a_folder_of_several_splits_is_not_one_table(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict({"train": Dataset.from_dict({"text": ["x"]})}).save_to_disk(tmp_path / "folder")
    with pytest.raises(ValueError, match="it holds several splits: name one of train"):
        read_table(tmp_path / "folder", "text")
    assert list(read_table(tmp_path / "folder" / "train", "text").texts) == ["x"]


@pytest.mark.parametrize("name", ["folder", "t.parquet"])
def test_the_names_of_a_saved_datasets_classes_count(tmp_path: Path, name: str) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    kinds = Features({"text": Value("string"), "label": ClassLabel(names=["yes", "no"])})
    saved = Dataset.from_dict({"text": ["bad", "good"], "label": [1, 0]}, kinds)
    if name == "folder":
        saved.save_to_disk(tmp_path / name)
    else:
        saved.to_parquet(str(tmp_path / name))
    assert read_table(tmp_path / name, "text", "label", ("no", "yes")).labels.tolist() == [0, 1]
