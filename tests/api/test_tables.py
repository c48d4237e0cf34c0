"""Tables with a client column, and Hugging Face datasets with a partitioner, made in memory."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedappeal
from fedappeal.api.silence import Notice
from fedappeal.api.tables import RowsByClient, TableColumns, TableForm, rows_of_dataset, rows_of_frame
from fedappeal.cli.main import main
from fedappeal.data.cells import Classes
from fedappeal.data.frames import Frame
from fedappeal.data.scaling import ByClient, Scaling
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks.partitions.assign import split_rows
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


BY_USER = TableColumns(client="user", label="y")


def test_rows_are_grouped_by_client_and_texts_become_classes() -> None:
    table = frame()
    rows = rows_of_frame(table, BY_USER)
    assert list(rows.names) == ["u0", "u1", "u2", "u3"]
    assert rows.form.class_names == ("no", "yes")
    mine = table[table["user"] == "u2"]
    assert torch.equal(rows.clients[2].x.float(), torch.tensor(mine[["a", "b", "c"]].to_numpy(np.float32)))  # type: ignore[arg-type]
    assert torch.equal(rows.clients[2].y, torch.tensor((mine["a"] > 0).to_numpy().astype(np.int64)))  # type: ignore[arg-type]


def shares(rows: RowsByClient, **settings: Any) -> list[tuple[int, int]]:
    made, _ = rows.shared_out(RunConfig(clients=4, **settings).task_settings())
    return [(len(client.train), len(client.test)) for client in made]


def test_each_client_splits_its_rows_by_the_train_share_and_the_seed() -> None:
    rows = rows_of_frame(frame(), BY_USER)
    assert shares(rows) == [(9, 6)] * 4
    assert shares(rows, train_share=0.8) == [(12, 3)] * 4
    first, again, other, same_data = (
        rows.shared_out(RunConfig(clients=4, **seeds).task_settings())[0][1].fingerprint
        for seeds in ({}, {"seed": 0}, {"seed": 1}, {"seed": 1, "data_seed": 0})
    )
    assert first == again == same_data != other


def test_labels_may_be_numbers_or_several_columns() -> None:
    table = frame()
    table["z"] = 1.5
    numbers = rows_of_frame(table, TableColumns("user", "z", ("a", "b"))).clients[0]
    assert numbers.x.shape == (15, 2)  # type: ignore[union-attr]
    assert numbers.y.dtype == torch.float32  # type: ignore[union-attr]
    both = rows_of_frame(table, TableColumns("user", ("b", "z"), ("a",))).clients[0]
    assert both.y.shape == (15, 2)  # type: ignore[union-attr]


def test_columns_may_be_called_by_numbers_and_0_is_one_of_them(in_folder: None) -> None:
    table = frame().rename(columns={"user": 0, "y": 1, "a": 2, "b": 3.5})
    rows = rows_of_frame(table, TableColumns(client=0, label=1, features=2))  # type: ignore[arg-type]
    assert (rows.form.client_column, rows.form.feature_names) == ("0", ("2",))
    run = fedappeal.simulate(
        "fedavg", data=table, client=0, label=1, features=[2, 3.5], model="logistic", out="run", **QUICK
    )
    assert run.predict(table, label=1).equals(run.predict(table, label="1", features=["2", "3.5"]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="device = 'gpu' is not allowed"):
        run.predict(table, device="gpu")


@pytest.mark.parametrize(
    ("change", "columns", "said"),
    [
        (
            {},
            TableColumns(label="y"),
            "client is missing: the column that names a row's client, one of a, b, c, user, y",
        ),
        ({}, TableColumns("user"), "label is missing: the column to predict"),
        ({}, TableColumns("users", "y"), "client = 'users' is not a column: a, b, c, user, y"),
        ({}, TableColumns("user", "y", ("a", "d")), "features = 'd' is not a column"),
        ({}, TableColumns("user", "y", "ab"), "features = 'ab' is not a column"),
        ({}, TableColumns("user", 3.5), "label = '3.5' is not a column"),  # type: ignore[arg-type]
        ({"b": "text"}, BY_USER, "row 1, column b: 'text' is no finite number (and 59 more of its rows)"),
        ({"b": None}, BY_USER, "row 1, column b: the cell is empty (and 59 more of its rows)"),
        ({"user": [1, "1", "u"] * 20}, BY_USER, "values of two types in column user call a client '1' (astype(str)"),
        ({"user": [f"u{k // 59}" for k in range(60)]}, BY_USER, "client 'u1' has 1 rows; at least 2"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(change: Any, columns: TableColumns, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        rows_of_frame(frame().assign(**change), columns)


def test_columns_of_whatever_type_pandas_has_are_read_alike() -> None:
    table = frame().assign(b=lambda t: t["b"] > 0, c=range(60), y=[k % 3 for k in range(60)])
    plain = rows_of_frame(table, BY_USER).clients[1]
    nullable = table.convert_dtypes()
    for other in (
        nullable,
        nullable.astype({"c": "uint16", "y": "uint8"}),
        table.convert_dtypes(dtype_backend="pyarrow"),
    ):
        rows = rows_of_frame(other, BY_USER).clients[1]
        assert torch.equal(rows.x, plain.x)  # type: ignore[arg-type]
        assert torch.equal(rows.y, plain.y)  # type: ignore[arg-type]


def test_a_name_is_the_same_with_blanks_around_it_and_in_both_forms_of_unicode() -> None:
    composed, apart = "caf\u00e9", "cafe\u0301"
    names = [composed, apart, f" {composed}", "tea ", "tea"] * 12
    rows = rows_of_frame(frame().assign(y=names, user=names), BY_USER)
    assert (rows.form.class_names, list(rows.names)) == ((composed, "tea"), [composed, "tea"])
    assert [client.y.tolist() for client in rows.clients] == [[0] * 36, [1] * 24]  # type: ignore[union-attr]
    for names_of_task in ((composed, "tea "), (apart, "tea ")):
        assert Classes(names_of_task, 2).labels_of([composed, apart, f"{apart} ", "tea", "tea "]).tolist() == [
            0,
            0,
            0,
            1,
            1,
        ]
    by_client = ByClient("user", {composed: Scaling((5.0,), (1.0,))}, Scaling((0.0,), (1.0,)))
    rows_of_one = Frame(frame().assign(user=names).iloc[:3])
    assert by_client.scaled(np.zeros((3, 1)), rows_of_one)[:, 0].tolist() == [-5, -5, -5]


def test_clients_called_by_numbers_are_found_however_a_number_is_written() -> None:
    scalings = {name: Scaling((float(name),), (1.0,)) for name in ("1", "2")}
    by_client = ByClient("user", scalings, Scaling((7.0,), (1.0,)))
    for users in ([1, 2, 1], [1.0, 2.0, 1.0], ["1", "2.0", "01"]):
        rows = Frame(pd.DataFrame({"user": users}))
        assert by_client.scaled(np.zeros((3, 1)), rows)[:, 0].tolist() == [-1, -2, -1]
    # Where names differ only so, they stay apart.
    apart = ByClient("user", {"1": Scaling((1.0,), (1.0,)), "01": Scaling((2.0,), (1.0,))}, Scaling((7.0,), (1.0,)))
    rows = Frame(pd.DataFrame({"user": ["1", "01"]}))
    assert apart.scaled(np.zeros((2, 1)), rows)[:, 0].tolist() == [-1, -2]
    for users, line in (
        (["1", "3", "4"], "2 row(s), first row 2, name no client of the run in column user, and each"),
        (["1", "01", "1.0"], "1 row(s), first row 3, name no client"),
    ):
        with pytest.raises(ValueError, match=re.escape(line)):
            apart.scaled(np.zeros((3, 1)), Frame(pd.DataFrame({"user": users})))
    with pytest.raises(ValueError, match=r"1 row\(s\), first row 1, name no client of the run in column user"):
        apart.scaled(np.zeros((1, 1)))


def test_all_columns_with_missing_values_are_named_in_one_message() -> None:
    table = frame().assign(a=float("nan"), user=None)
    with pytest.raises(ConfigError) as caught:
        rows_of_frame(table, BY_USER)
    assert all(f"row 1, column {name}: " in str(caught.value) for name in ("a", "user")), caught.value
    assert str(caught.value).count("(and 59 more of its rows)") == 2


def dataset() -> Any:
    table = frame()
    columns = {"a": table["a"], "b": table["b"], "user": table["user"], "y": (table["a"] > 0).astype(int)}
    number, text = datasets.Value("float32"), datasets.Value("string")
    kinds = {"a": number, "b": number, "user": text, "y": datasets.ClassLabel(names=["no", "yes"])}
    return datasets.Dataset.from_dict(
        {name: list(values) for name, values in columns.items()}, datasets.Features(kinds)
    )


def test_a_dataset_is_dealt_out_by_a_partitioner() -> None:
    rows = rows_of_dataset(
        dataset(), TableColumns("", "y", ("a", "b"), partitioners.IidPartitioner(num_partitions=5))
    )
    assert [len(client) for client in rows.clients] == [12] * 5
    assert rows.form.class_names == ("no", "yes")
    assert rows.clients[0].x.shape == (12, 2)  # type: ignore[union-attr]
    partitioner = partitioners.DirichletPartitioner(num_partitions=3, partition_by="y", alpha=5.0, seed=1)
    columns = TableColumns("", "y", ("a", "b"), partitioner)
    sizes = [len(client) for client in rows_of_dataset(dataset(), columns).clients]
    assert sum(sizes) == 60
    assert not partitioner.is_dataset_assigned(), "the same partitioner can deal out another data set"


def test_a_client_column_is_a_partitioner_too() -> None:
    rows = rows_of_dataset(dataset(), TableColumns("user", "y"))
    assert [len(client) for client in rows.clients] == [15] * 4
    assert (list(rows.names), rows.form.feature_names) == (["u0", "u1", "u2", "u3"], ("a", "b"))


def test_token_ids_stay_apart_and_images_become_floats() -> None:
    whole, number = partitioners.IidPartitioner(num_partitions=1), datasets.Value("int64")
    three = datasets.Sequence(number, 3)
    kinds = datasets.Features({"ids": three, "mask": three, "y": number})
    tokens = {"ids": [[1, 2, 3]] * 4, "mask": [[1, 1, 0]] * 4, "y": [0, 1, 0, 1]}
    x = rows_of_dataset(datasets.Dataset.from_dict(tokens, kinds), TableColumns("", "y", (), whole)).clients[0].x
    assert isinstance(x, dict)
    assert x["ids"].dtype == torch.int64
    assert x["mask"].tolist() == [[1, 1, 0]] * 4
    pictures = [np.full((5, 4, 3), 255, np.uint8), np.zeros((5, 4, 3), np.uint8)]
    kinds = datasets.Features({"image": datasets.Image(), "y": number})
    images = datasets.Dataset.from_dict({"image": pictures, "y": [0, 1]}, kinds)
    found = rows_of_dataset(images, TableColumns("", "y", (), whole)).clients[0].x
    assert isinstance(found, torch.Tensor)
    assert found.shape == (2, 3, 5, 4)
    assert sorted(found.flatten(1).mean(dim=1).tolist()) == [0.0, 1.0]


def test_rows_of_unequal_length_are_named() -> None:
    ragged = datasets.Dataset.from_dict({"ids": [[1], [1, 2]], "y": [0, 1]})
    with pytest.raises(ConfigError, match="column 'ids' is not allowed: its rows are texts or of unequal length"):
        rows_of_dataset(ragged, TableColumns("", "y", (), partitioners.IidPartitioner(num_partitions=1)))
    with pytest.raises(ConfigError, match="partitioner is missing"):
        rows_of_dataset(ragged, TableColumns("", "y"))
    with pytest.raises(ConfigError, match="partitioner is not allowed: "):
        rows_of_dataset(dataset(), TableColumns("", "y", ("a",), partitioners.IidPartitioner(num_partitions=100)))


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


def moments(user: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the training rows of one of the frame's clients."""
    table = frame()
    mine = table[table["user"] == user][["a", "b", "c"]].to_numpy()
    place = sorted({*table["user"]}).index(user)
    train, _ = split_rows(RunConfig(clients=4, seed=0).task_settings(), place, np.arange(len(mine)))
    return mine[train].mean(axis=0), mine[train].std(axis=0)


def test_each_client_is_standardised_by_its_own_training_rows_unless_told_otherwise() -> None:
    table = frame().assign(same=0.1, a=lambda t: 60 + 15 * t["a"])
    rows = rows_of_frame(table, BY_USER)
    settings = RunConfig(clients=4).task_settings()
    (first, *_), scaler = rows.shared_out(settings)
    assert isinstance(first.train.x, torch.Tensor)
    assert isinstance(first.test.x, torch.Tensor)
    assert first.train.x.mean(dim=0).tolist() == pytest.approx([0, 0, 0, 0], abs=1e-6)
    assert first.train.x.std(dim=0, correction=0).tolist() == pytest.approx([1, 1, 1, 0], abs=1e-5)
    mine = table[table["user"] == "u0"][["a", "b", "c", "same"]].to_numpy()
    train, test = split_rows(settings, 0, np.arange(15))
    mean, std = mine[train].mean(axis=0), np.array([*mine[train].std(axis=0)[:3], 1])
    np.testing.assert_allclose(first.test.x, (mine[test] - mean) / std, rtol=1e-5, atol=1e-6)
    assert scaler is not None
    (plain, *_), scaler = rows.shared_out(settings.model_copy(update={"scale": "none"}))
    assert scaler is None
    np.testing.assert_array_equal(plain.train.x, mine[train].astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scale = 'standard' is not allowed: the inputs are no columns of numbers"):
        RowsByClient(rows.clients, rows.names, TableForm()).shared_out(
            settings.model_copy(update={"scale": "standard"})
        )


def test_a_run_of_a_version_without_the_setting_takes_tables_as_they_are() -> None:
    assert RunConfig.parse_recorded({}).scale == "none"
    assert RunConfig().scale == "auto"


def test_a_data_frame_an_array_or_a_dataset_is_predicted(in_folder: None) -> None:
    table = frame().assign(y=lambda t: t["a"] > 0)
    test = (table[["a", "b", "c"]].to_numpy(), table["y"].to_numpy(int))
    run = fedappeal.simulate(
        "fedavg", data=table, client="user", label="y", model="logistic", out="run", evaluate=test, **QUICK
    )
    right = run.predict(test[0], scale_from="pooled")["label"] == table["y"].astype(str)
    assert run.history["central_accuracy"].iloc[-1] == pytest.approx(right.mean())
    said = run.predict(table, label="y")
    assert set(said["label"]) <= {"True", "False"}
    table.to_csv("t.csv", index=False)
    table.to_parquet("t.parquet")
    for other in ("t.csv", "t.parquet", datasets.Dataset.from_pandas(table)):
        assert run.predict(other, label="y").equals(said)
        assert run.predict(other, label="y").attrs["metrics"] == said.attrs["metrics"]
    columns = table[["a", "b", "c"]]
    for unnamed in (columns.to_numpy(), columns, table.assign(user="u9")):
        with pytest.raises(
            ConfigError, match=r"60 row\(s\), first row 1, name no client .* or 'pooled', that of all"
        ):
            run.predict(unnamed)
    by_array, by_columns = (run.predict(d, scale_from="pooled") for d in (columns.to_numpy(), columns))
    assert by_array.equals(by_columns)
    by_mine = run.predict(columns, scale_from=columns)
    scaled = ((columns - columns.mean()) / columns.std(ddof=0)).to_numpy(np.float32)
    assert by_mine["label"].tolist() == run.predict(torch.tensor(scaled).double())["label"].tolist()
    assert by_mine.equals(run.predict(columns, scale_from=datasets.Dataset.from_pandas(columns)))
    with pytest.raises(ConfigError, match="a tensor is what the model takes"):
        run.predict(torch.tensor(scaled), scale_from=columns)
    with pytest.raises(
        ConfigError, match="scale-from = 'int' is not allowed: a path of a table or of a client's model"
    ):
        run.predict(columns, scale_from=3)
    for wrong, line in (
        (3, "data = 'int' is not allowed: a path, a DataFrame"),
        (torch.zeros(2, 9), r"the data are not allowed, 0 to 1: the model does not take them \(RuntimeError"),
        (torch.tensor(1.0), r"data = 'Tensor' is not allowed: a tensor of shape \(\): finite numbers, n examples"),
        (torch.full((2, 3), torch.nan), r"data = 'Tensor' is not allowed: a tensor of shape \(2, 3\): finite"),
        (np.ma.array([[1.0] * 3], mask=[[True, False, False]]), "data = 'MaskedArray' is not allowed"),
        (
            columns.assign(b=None),
            r"data = 'DataFrame' is not allowed: row 1, column b: the cell is empty \(and 59 more",
        ),
    ):
        with pytest.raises(ConfigError, match=line):
            run.predict(wrong)


def test_the_runs_model_predicts_a_table_by_its_columns_and_is_exported(
    in_folder: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fedappeal.simulate("fedavg", data=frame(), client="user", label="y", model="logistic", out="run", **QUICK)
    frame(40)[["y", "c", "user", "a", "b"]].to_csv("new.csv", index=False)
    said = run.predict("new.csv", label="y")
    x = frame(40)[["a", "b", "c"]].to_numpy()
    mean, std = zip(*(moments(user) for user in frame(40)["user"]), strict=True)
    x = torch.tensor((x - np.stack(mean)) / np.stack(std)).float()
    shares = run.model()(x).softmax(1).max(1)
    assert said["label"].tolist() == [["no", "yes"][k] for k in shares.indices.tolist()]
    assert said["probability"].tolist() == pytest.approx(shares.values.tolist(), rel=1e-5)
    assert said.attrs["metrics"] == {"accuracy": pytest.approx((said["label"] == said["given"]).mean())}
    with pytest.raises(ConfigError, match=r"^data = 'new.csv' is not allowed: it has no column z"):
        run.predict("new.csv", label="z")
    with pytest.warns(Notice, match=r"the model takes columns as \(column - mean\) / standard deviation"):
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
