"""Columns of categories: a 0 or 1 for each value, by what the whole data or the task declares, in every format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedappeal
from fedappeal.api.plan import OwnData
from fedappeal.api.tables import TableColumns, rows_of_dataset, rows_of_frame
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks.partitions.assign import split_rows
from fedappeal.trained import read_card
from tests.api.blobs import QUICK
from tests.later import Later

pd, datasets = Later("pandas"), Later("datasets")
SIZES = ["small", "large", "3+"]
COLUMNS = TableColumns("who", "ill", ("age", "size"))


def patients() -> Any:
    draw = np.random.default_rng(0)
    sizes = draw.choice(SIZES, 80)
    table = pd.DataFrame({"age": draw.integers(20, 90, 80), "size": pd.Categorical(sizes, [*SIZES, "huge"])})
    table["who"] = [f"u{k % 2}" for k in range(80)]
    return table.assign(ill=(table["size"] == "large") ^ (draw.random(80) < 0.05))


def test_a_category_is_a_column_for_each_of_its_values_standardised_as_others_are() -> None:
    table, settings = patients(), RunConfig(clients=2).task_settings()
    rows = rows_of_frame(table, COLUMNS)
    assert rows.form.categories == {"size": [*SIZES, "huge"]}
    (first, _), _ = rows.shared_out(settings)
    by_pandas = pd.get_dummies(table[table["who"] == "u0"][["age", "size"]]).to_numpy(np.float64)
    train, test = split_rows(settings, 0, np.arange(40))
    mean, std = by_pandas[train].mean(axis=0), by_pandas[train].std(axis=0)
    expected = (by_pandas[test] - mean) / np.where(std > 0, std, 1)  # nobody is huge
    np.testing.assert_allclose(first.test.x, expected, rtol=1e-5, atol=1e-6)
    whole = table.assign(size=table["size"].astype(object))
    with pytest.raises(ConfigError, match=r"column size: .*and 79 more.*make texts categories \(table\[column\]"):
        rows_of_frame(whole, COLUMNS)
    with pytest.raises(ConfigError, match="row 1, column size: the cell is empty"):
        rows_of_frame(table.assign(size=table["size"].where(table.index > 0)), COLUMNS)


def test_the_runs_model_predicts_categories_in_every_format(tmp_path: Path) -> None:
    table = patients()
    run = fedappeal.simulate(
        **{**QUICK, "rounds": 6, "local_steps": 30}, data=table, client="who", label="ill", model="logistic"
    )
    card = read_card(run.path / "model.safetensors")
    assert (card.feature_names, card.input_shape) == (("age", "size"), (5,))
    assert card.categories == {"size": (*SIZES, "huge")}
    other = table[["ill", "size", "who", "age"]]
    other.to_csv(tmp_path / "t.csv", index=False)
    other.to_parquet(tmp_path / "t.parquet")
    other.astype({"size": object}).to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    texts = other.astype({"size": object})
    said = [
        run.predict(d, label="ill")
        for d in (table, texts, *(tmp_path / f"t.{e}" for e in ("csv", "parquet", "jsonl")))
    ]
    assert all(frame["probability"].tolist() == said[0]["probability"].tolist() for frame in said)
    assert said[0].attrs["metrics"]["accuracy"] > 0.9
    texts.loc[[3, 5], "size"] = "tiny"
    with pytest.raises(
        ConfigError, match=r"row 4, column size: 'tiny' is none of its values: small, large, 3\+, huge \(and 1"
    ):
        run.predict(texts)


def with_labels(sizes: list[str]) -> Any:
    """The same patients as a dataset whose column of sizes has classes of this order."""
    table = patients()
    rows = {name: table[name].astype(object).tolist() for name in ("age", "size", "who", "ill")}
    kinds = {"age": "int64", "who": "string", "ill": "bool"}
    features = {name: datasets.Value(kind) for name, kind in kinds.items()} | {
        "size": datasets.ClassLabel(names=sizes)
    }
    return datasets.Dataset.from_dict(rows, datasets.Features({name: features[name] for name in rows}))


def test_class_labels_among_the_inputs_are_categories_by_their_names() -> None:
    columns = TableColumns("who", "ill", ("age", "size"))
    rows, turned = (rows_of_dataset(with_labels(sizes), columns) for sizes in (SIZES, SIZES[::-1]))
    expected = pd.get_dummies(patients()[["age", "size"]]).to_numpy(np.float64)[::2]
    np.testing.assert_array_equal(rows.clients[0].x, expected[:, :4])
    np.testing.assert_array_equal(turned.clients[0].x, expected[:, [0, 3, 2, 1]])
    # The classes of both splits are those of the first.
    both = datasets.DatasetDict(train=with_labels(SIZES), test=with_labels(SIZES[::-1]))
    whole: Any = OwnData(both, TableColumns(label="ill", features=("age", "size"))).clients
    np.testing.assert_array_equal(whole.examples.x[:80], whole.examples.x[80:])
