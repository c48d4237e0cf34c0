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
        ("t.txt", "text\nx\n", "not a table of texts"),
        ("t.csv", "text,label\n", "it has no rows"),
        ("t.csv", "text\nx\n", r"it has no column 'label' \(it has text\)"),
        ("t.csv", "label,text\n0,x\n1\n", "row 2 has no 'text'"),
        ("t.csv", 'text,label\n"  ",0\n', "row 1 has no text: '  '"),
        ("t.csv", "text,label\nx,0\nx,2\n", "row 2 has the label '2': no, yes, or 0 to 1 are allowed"),
        ("t.jsonl", '{"text": "x", "label": 0}\n{"text"\n', "line 2 is not JSON"),
        ("t.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("t.jsonl", '{"text": 3, "label": 0}\n', "row 1 has no text: 3"),
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
