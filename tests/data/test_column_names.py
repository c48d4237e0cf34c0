"""A column's name is one name in both of Unicode's forms, in every format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedappeal
from fedappeal.api.tables import RowsByClient, TableColumns, rows_of_dataset, rows_of_frame
from fedappeal.data.columns import Columns, Unfit, choose
from fedappeal.data.frames import Frame, HuggingFace
from fedappeal.data.read import Features, open_table, read_numbers
from fedappeal.data.table import Problems, Table
from fedappeal.hf.texts import read_table
from tests.api.blobs import QUICK
from tests.later import Later

pd, datasets = Later("pandas"), Later("datasets")
COMPOSED, APART = ("h\u00f6he", "\u00e9t\u00e9", "caf\u00e9"), ("ho\u0308he", "e\u0301te\u0301", "cafe\u0301")


def frame(names: tuple[str, ...]) -> Any:
    rows = np.arange(24).reshape(8, 3) * 1.5
    return pd.DataFrame(rows, columns=list(names)).assign(**{names[2]: list("xyxyxyxy")})


def saved(folder: Path, end: str, table: Any) -> Table:
    path = folder / f"t{end}"
    match end:
        case ".csv":
            table.to_csv(path, index=False)
        case ".jsonl":
            table.to_json(path, orient="records", lines=True)
        case ".parquet":
            table.to_parquet(path)
        case _:
            datasets.Dataset.from_pandas(table).save_to_disk(path)
    return open_table(path)


KINDS: dict[str, Callable[[Path, Any], Table]] = {
    **{end: lambda folder, table, end=end: saved(folder, end, table) for end in (".csv", ".jsonl", ".parquet", "")},  # type: ignore[misc]
    "pandas": lambda folder, table: Frame(table),
    "datasets": lambda folder, table: HuggingFace(datasets.Dataset.from_pandas(table)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("there", "wanted"), [(APART, COMPOSED), (COMPOSED, APART)], ids=["composed", "apart"])
def test_a_column_is_found_in_whichever_form_it_is_asked_for(
    kind: str, there: tuple[str, ...], wanted: tuple[str, ...], tmp_path: Path
) -> None:
    table = KINDS[kind](tmp_path, frame(there))
    for owners, of_task in ((wanted[:2], ()), ((), wanted[:2])):
        chosen = choose(table.names, Columns(owners, ""), of_task, needs_label=False)
        x, _, _ = read_numbers(Features(table, chosen.features))
        assert x.tolist() == frame(there)[list(there[:2])].to_numpy().tolist()


def read_all(table: Table, column: str) -> None:
    problems = Problems()
    list(table.pieces([column], problems))
    problems.check()


@pytest.mark.parametrize("kind", KINDS)
def test_two_columns_of_one_name_are_refused_where_it_is_asked_for(kind: str, tmp_path: Path) -> None:
    table = KINDS[kind](tmp_path, frame(("a", APART[2], "b")).assign(**{COMPOSED[2]: 1.0}))
    with pytest.raises(Unfit, match=f"2 of its columns are called {COMPOSED[2]}|line 1 has '{COMPOSED[2]}' twice"):
        read_all(table, COMPOSED[2])


def test_texts_are_found_so_too(tmp_path: Path) -> None:
    saved(tmp_path, ".csv", frame(APART))
    assert list(read_table(tmp_path / "t.csv", COMPOSED[2]).texts) == list("xyxyxyxy")


def test_a_programs_own_data_and_its_predictions_take_either(tmp_path: Path) -> None:
    def told(rows: RowsByClient) -> Any:
        return rows.names, rows.form, [split.x.tolist() for split in rows.clients]  # type: ignore[union-attr]

    columns = [TableColumns(names[2], names[1], names[:1]) for names in (COMPOSED, APART)]
    tables = [frame(names) for names in (COMPOSED, APART)]
    first = told(rows_of_frame(tables[0], columns[0]))
    assert first[:2] == (["x", "y"], rows_of_frame(tables[0], columns[0]).form)
    assert first[1].feature_names == COMPOSED[:1]
    for table in tables:
        for choice in columns:
            assert told(rows_of_frame(table, choice)) == first
            assert told(rows_of_dataset(datasets.Dataset.from_pandas(table), choice)) == first
    binary = [table.assign(**{names[1]: [0, 1] * 4}) for table, names in zip(tables, (COMPOSED, APART), strict=True)]
    run = fedappeal.simulate(
        data=binary[0], client=APART[2], label=APART[1], features=[APART[0]], model="logistic", **QUICK
    )
    choices = [(table, name) for table in binary for name in (APART[1], COMPOSED[1])]
    said = [run.predict(table, label=name)["probability"].tolist() for table, name in choices]
    assert said == [said[0]] * 4
