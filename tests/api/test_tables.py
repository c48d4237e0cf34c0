"""Tables with a client column, and Hugging Face datasets with a partitioner, made in memory."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedappeal
from fedappeal.api.tables import Columns, Rows, rows_of_dataset, rows_of_frame
from fedappeal.cli.main import main
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.trained import load_model
from fedappeal.views.report.report import write_report
from tests.api.blobs import QUICK, Net, in_folder
from tests.later import Later

pd, datasets, partitioners = Later("pandas"), Later("datasets"), Later("flwr_datasets.partitioner")

__all__ = ["in_folder"]


def frame(rows: int = 60) -> Any:
    draw = np.random.default_rng(0)
    found = pd.DataFrame(draw.normal(size=(rows, 3)), columns=["a", "b", "c"])
    found["user"] = [f"u{k % 4}" for k in range(rows)]
    found["y"] = np.where(found["a"] > 0, "yes", "no")
    return found


BY_USER = Columns(client="user", label="y")


def test_rows_are_grouped_by_client_and_texts_become_classes() -> None:
    table = frame()
    rows = rows_of_frame(table, BY_USER)
    assert list(rows.names) == ["u0", "u1", "u2", "u3"]
    assert rows.class_names == ("no", "yes")
    mine = table[table["user"] == "u2"]
    assert torch.equal(rows.clients[2].x, torch.tensor(mine[["a", "b", "c"]].to_numpy(np.float32)))  # type: ignore[arg-type]
    assert torch.equal(rows.clients[2].y, torch.tensor((mine["a"] > 0).to_numpy().astype(np.int64)))  # type: ignore[arg-type]


def shares(rows: Rows, **settings: Any) -> list[tuple[int, int]]:
    made = rows.shared_out(RunConfig(clients=4, **settings).task_settings())
    return [(len(client.train), len(client.test)) for client in made]


def test_each_client_splits_its_rows_by_the_train_share_and_the_seed() -> None:
    rows = rows_of_frame(frame(), BY_USER)
    assert shares(rows) == [(9, 6)] * 4
    assert shares(rows, train_share=0.8) == [(12, 3)] * 4
    first, again, other, same_data = (
        rows.shared_out(RunConfig(clients=4, **seeds).task_settings())[1].fingerprint
        for seeds in ({}, {"seed": 0}, {"seed": 1}, {"seed": 1, "data_seed": 0})
    )
    assert first == again == same_data != other


def test_labels_may_be_numbers_or_several_columns() -> None:
    table = frame()
    table["z"] = 1.5
    numbers = rows_of_frame(table, Columns("user", "z", ("a", "b"))).clients[0]
    assert numbers.x.shape == (15, 2)  # type: ignore[union-attr]
    assert numbers.y.dtype == torch.float32  # type: ignore[union-attr]
    both = rows_of_frame(table, Columns("user", ("b", "z"), ("a",))).clients[0]
    assert both.y.shape == (15, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "columns", "said"),
    [
        ({}, Columns(label="y"), "client is missing: the column that names a row's client, one of a, b, c, user, y"),
        ({}, Columns("user"), "label is missing: the column to predict"),
        ({}, Columns("users", "y"), "client = 'users' is not a column: a, b, c, user, y"),
        ({}, Columns("user", "y", ("a", "d")), "features = 'd' is not a column"),
        ({"b": "text"}, BY_USER, "column 'b' is not allowed as an input: it holds"),
        ({"b": None}, BY_USER, "column 'b' has 60 missing values"),
        ({"user": [f"u{k // 59}" for k in range(60)]}, BY_USER, "client 'u1' has 1 rows; at least 2"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(change: Any, columns: Columns, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        rows_of_frame(frame().assign(**change), columns)


def dataset() -> Any:
    table = frame()
    columns = {"a": table["a"], "b": table["b"], "user": table["user"], "y": (table["a"] > 0).astype(int)}
    number, text = datasets.Value("float32"), datasets.Value("string")
    kinds = {"a": number, "b": number, "user": text, "y": datasets.ClassLabel(names=["no", "yes"])}
    return datasets.Dataset.from_dict(
        {name: list(values) for name, values in columns.items()}, datasets.Features(kinds)
    )


def test_a_dataset_is_dealt_out_by_a_partitioner() -> None:
    rows = rows_of_dataset(dataset(), Columns("", "y", ("a", "b"), partitioners.IidPartitioner(num_partitions=5)))
    assert [len(client) for client in rows.clients] == [12] * 5
    assert rows.class_names == ("no", "yes")
    assert rows.clients[0].x.shape == (12, 2)  # type: ignore[union-attr]
    partitioner = partitioners.DirichletPartitioner(num_partitions=3, partition_by="y", alpha=5.0, seed=1)
    columns = Columns("", "y", ("a", "b"), partitioner)
    sizes = [len(client) for client in rows_of_dataset(dataset(), columns).clients]
    assert sum(sizes) == 60
    assert not partitioner.is_dataset_assigned(), "the same partitioner can deal out another data set"


def test_a_client_column_is_a_partitioner_too() -> None:
    rows = rows_of_dataset(dataset(), Columns("user", "y"))
    assert [len(client) for client in rows.clients] == [15] * 4


def test_token_ids_stay_apart_and_images_become_floats() -> None:
    whole, number = partitioners.IidPartitioner(num_partitions=1), datasets.Value("int64")
    three = datasets.Sequence(number, 3)
    kinds = datasets.Features({"ids": three, "mask": three, "y": number})
    tokens = {"ids": [[1, 2, 3]] * 4, "mask": [[1, 1, 0]] * 4, "y": [0, 1, 0, 1]}
    x = rows_of_dataset(datasets.Dataset.from_dict(tokens, kinds), Columns("", "y", (), whole)).clients[0].x
    assert isinstance(x, dict)
    assert x["ids"].dtype == torch.int64
    assert x["mask"].tolist() == [[1, 1, 0]] * 4
    pictures = [np.full((5, 4, 3), 255, np.uint8), np.zeros((5, 4, 3), np.uint8)]
    kinds = datasets.Features({"image": datasets.Image(), "y": number})
    images = datasets.Dataset.from_dict({"image": pictures, "y": [0, 1]}, kinds)
    found = rows_of_dataset(images, Columns("", "y", (), whole)).clients[0].x
    assert isinstance(found, torch.Tensor)
    assert found.shape == (2, 3, 5, 4)
    assert sorted(found.flatten(1).mean(dim=1).tolist()) == [0.0, 1.0]


def test_rows_of_unequal_length_are_named() -> None:
    ragged = datasets.Dataset.from_dict({"ids": [[1], [1, 2]], "y": [0, 1]})
    with pytest.raises(ConfigError, match="column 'ids' is not allowed: its rows are texts or of unequal length"):
        rows_of_dataset(ragged, Columns("", "y", (), partitioners.IidPartitioner(num_partitions=1)))
    with pytest.raises(ConfigError, match="partitioner is missing"):
        rows_of_dataset(ragged, Columns("", "y"))
    with pytest.raises(ConfigError, match="partitioner is not allowed: "):
        rows_of_dataset(dataset(), Columns("", "y", ("a",), partitioners.IidPartitioner(num_partitions=100)))


@pytest.mark.usefixtures("in_folder")
def test_a_run_on_a_table_and_on_a_dataset() -> None:
    run = fedappeal.simulate("fedavg", data=frame(), client="user", label="y", model="logistic", **QUICK)
    assert run.config.clients == 4
    assert {*run.clients["client"]} == {*frame()["user"].astype(str)}
    report = write_report([run.path]).read_text()
    assert all(f'"{user}' in report or f">{user}<" in report for user in {*frame()["user"]})
    assert "client-0000" not in report
    assert run.history["accuracy"].iloc[-1] > 0.5
    with pytest.raises(ConfigError, match="data is not that of the run"):
        fedappeal.load(run.path, data=frame(80), client="user", label="y", model="logistic")
    again = fedappeal.load(run.path, data=frame(), client="user", label="y", model="logistic", quiet=True)
    assert again.resume(rounds=4).rounds == 4
    mine = partitioners.IidPartitioner(num_partitions=6)
    other = fedappeal.simulate(
        "fedavg",
        data=dataset(),
        partitioner=mine,
        label="y",
        features=["a", "b"],
        model="mlp",
        unseen_clients=2,
        **QUICK,
    )
    assert (other.config.clients, other.config.unseen_clients) == (4, 2)
    assert "unseen_accuracy" in other.history


def test_the_runs_model_predicts_a_table_by_its_columns_and_is_exported(
    in_folder: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fedappeal.simulate("fedavg", data=frame(), client="user", label="y", model="logistic", out="run", **QUICK)
    frame(40)[["y", "c", "user", "a", "b"]].to_csv("new.csv", index=False)
    said = run.predict("new.csv", label="y")
    x = torch.tensor(frame(40)[["a", "b", "c"]].to_numpy(np.float32))
    shares = run.model()(x).softmax(1).max(1)
    assert said["label"].tolist() == [["no", "yes"][k] for k in shares.indices.tolist()]
    assert said["probability"].tolist() == pytest.approx(shares.values.tolist(), rel=1e-5)
    assert said.attrs["metrics"] == {"accuracy": pytest.approx((said["label"] == said["given"]).mean())}
    with pytest.raises(ConfigError, match=r"^data = 'new.csv' is not allowed: it has no column z"):
        run.predict("new.csv", label="z")
    assert run.export("safetensors") == Path("run.safetensors")
    assert torch.equal(load_model("run.safetensors", run.model()).output.weight, run.model().output.weight)  # type: ignore[union-attr]
    monkeypatch.setattr("sys.argv", ["fedappeal", "predict", "run", "--data", "new.csv"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
    assert "'run' holds a run of a program's own data and model: that program's run.predict(...) and" in printed.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition": "iid"}, "partition = 'iid' is not allowed beside data"),
        ({"clients": 3}, "clients = 3 is not allowed: the data has 4"),
        ({"unseen_clients": 4}, "unseen_clients = 4 is not allowed: 0 to 3 of the data's 4"),
        ({"task": "digits"}, "task = 'digits' is not allowed beside data"),
        ({"model": None}, "model is missing"),
        ({"model": "resnet"}, "model = 'resnet' is not allowed"),
        ({"data": None}, "data is missing: client, label, features and partitioner go with it"),
        ({"data": 3}, "client, label, features and partitioner go with a DataFrame or a datasets.Dataset"),
    ],
)
def test_settings_that_do_not_go_with_own_data(settings: Any, said: str, tmp_path: Any) -> None:
    given: dict[str, Any] = {"data": frame(), "client": "user", "label": "y", "model": Net, "out": tmp_path / "run"}
    with pytest.raises(ConfigError, match=re.escape(said)):
        fedappeal.simulate(**given | settings)
    assert not (tmp_path / "run").exists()
