"""Data that name no clients, and clients by name; what is no data at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, TensorDataset

import fedappeal
from fedappeal.api.plan import OwnData
from fedappeal.api.tables import TableColumns
from fedappeal.api.whole_data import WholeData
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.examples import ClientData
from fedappeal.trained import read_card
from tests.api.blobs import QUICK, Net, losses, pairs, side

DEALT: dict[str, Any] = {"clients": 3, "partition": "iid", "min_examples": 2}


def dealt(data: Any, columns: TableColumns | None = None, **settings: Any) -> list[ClientData]:
    clients = OwnData(data, columns or TableColumns()).clients
    assert not isinstance(clients, list)
    return clients.shared_out(TaskSettings.parse({**DEALT, **settings}))[0]


def numbered(examples: int, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples whose only feature is their number, of two classes by turns."""
    numbers = torch.arange(first, first + examples)
    return numbers[:, None].float(), numbers % 2


def numbers_in(*splits: Any) -> list[int]:
    return sorted(int(number) for split in splits for number in split.x[:, 0])


@pytest.mark.parametrize(
    "whole",
    [
        TensorDataset(*numbered(90)),
        ConcatDataset([TensorDataset(*numbered(50)), TensorDataset(*numbered(40, 50))]),
        numbered(90),
    ],
    ids=["Dataset", "ConcatDataset", "(x, y)"],
)
@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_a_whole_data_set_is_dealt_out_each_example_once(whole: Any, partition: str) -> None:
    clients = dealt(whole, partition=partition)
    assert len(clients) == 3
    assert numbers_in(*(split for client in clients for split in client.splits)) == list(range(90))
    for client in clients:
        for split in client.splits:
            assert torch.equal(split.y, split.x[:, 0].long() % 2)  # type: ignore[arg-type, call-overload, index]
    if partition == "iid":
        assert [client.counts for client in clients] == [(18, 12)] * 3  # train-share 0.6 of 30


def test_the_splits_of_a_dataset_dict_stay_apart() -> None:
    datasets = pytest.importorskip("datasets")

    def part(examples: int, first: int) -> Any:
        x, y = numbered(examples, first)
        features = datasets.Features({"x": datasets.Value("float32"), "y": datasets.ClassLabel(names=["no", "yes"])})
        return datasets.Dataset.from_dict({"x": x[:, 0].tolist(), "y": y.tolist()}, features=features)

    both = datasets.DatasetDict(train=part(60, 0), test=part(30, 60))
    clients = dealt(both, TableColumns(label="y"), scale="none")
    trained = sorted(int(n) for client in clients for n in torch.as_tensor(client.train.x).flatten())
    tested = sorted(int(n) for client in clients for n in torch.as_tensor(client.test.x).flatten())
    assert (trained, tested) == (list(range(60)), list(range(60, 90)))
    whole = OwnData(both, TableColumns(label="y")).clients
    assert not isinstance(whole, list)
    assert whole.form.class_names == ("no", "yes")
    with pytest.raises(ConfigError, match="a DatasetDict of train, other; the splits train and test are"):
        dealt(datasets.DatasetDict(train=part(9, 0), other=part(9, 9)), TableColumns(label="y"))


def test_labels_of_both_splits_of_a_dataset_dict_are_the_same_classes() -> None:
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_dict({"x": [float(i) for i in range(12)], "y": ["a", "b", "d"] * 4})
    test = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0, 3.0], "y": ["d", "c", "d", "c"]})  # no a, but c
    whole = OwnData(datasets.DatasetDict(train=train, test=test), TableColumns(label="y")).clients
    assert isinstance(whole, WholeData)
    assert whole.form.class_names == ("a", "b", "c", "d")
    assert torch.as_tensor(whole.examples.y).tolist() == [0, 1, 3] * 4 + [3, 2, 3, 2]
    numbers = datasets.Dataset.from_dict({"x": [0.0, 1.0], "y": [0, 1]})
    with pytest.raises(ConfigError, match=r"^label = \['y'\] is not allowed: The features can't be aligned"):
        _ = OwnData(datasets.DatasetDict(train=train, test=numbers), TableColumns(label="y")).clients


def test_a_client_without_training_rows_of_a_dataset_dict_is_named() -> None:
    datasets = pytest.importorskip("datasets")
    train, test = (
        datasets.Dataset.from_dict({"x": [float(i) for i in range(n)], "y": [0, 1] * (n // 2)}) for n in (2, 88)
    )
    with pytest.raises(ConfigError, match=r"^data is not allowed: client \d has no train examples"):
        dealt(datasets.DatasetDict(train=train, test=test), TableColumns(label="y"))


def animals(names: list[str], classes: list[str] | None = None, turned: bool = False, **more: Any) -> Any:
    """Return a dataset of 60 rows, in which x tells the class and z nothing."""
    datasets = pytest.importorskip("datasets")
    kinds = [names[row % len(names)] for row in range(60)]
    columns = {"x": [float(["ape", "bee", "cow"].index(kind)) for kind in kinds], "z": [9.0] * 60, "kind": kinds}
    rows = datasets.Dataset.from_dict(columns | more)
    if classes:
        rows = rows.cast_column("kind", datasets.ClassLabel(names=classes))
    return rows.select_columns(rows.column_names[::-1]) if turned else rows


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (animals(["ape", "bee", "cow"]), animals(["bee", "cow"])),
        (animals(["bee", "cow"]), animals(["ape", "bee", "cow"])),
        (animals(["ape", "bee", "cow"]), animals(["ape", "bee", "cow"], turned=True)),
        (animals(["ape", "bee", "cow"]), animals(["ape", "bee", "cow"], more=[1] * 60)),
    ],
    ids=["fewer classes to test", "fewer classes to train", "columns in another order", "a further column"],
)
def test_columns_and_classes_mean_the_same_in_both_splits(train: Any, test: Any) -> None:
    datasets = pytest.importorskip("datasets")
    for client in dealt(datasets.DatasetDict(train=train, test=test), TableColumns(label="kind"), scale="none"):
        for split in client.splits:
            x = torch.as_tensor(split.x)
            assert x[:, 0].tolist() == split.y.tolist()  # type: ignore[union-attr]
            assert (x[:, 1] == 9).all()


def test_splits_whose_classes_have_another_order_are_refused() -> None:
    datasets = pytest.importorskip("datasets")
    names = ["ape", "bee", "cow"]
    both = datasets.DatasetDict(train=animals(names, names), test=animals(names, names[::-1]))
    with pytest.raises(ConfigError, match=r"^label = \['kind'\] is not allowed: The features can't be aligned"):
        dealt(both, TableColumns(label="kind"))


def test_a_folder_of_torchvision_keeps_its_class_names(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    for name in ("ant", "bee"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for grey in range(20):
            Image.fromarray(np.full((3, 2), grey * 10, np.uint8)).save(tmp_path / "images" / name / f"{grey}.png")
    folder = torchvision.datasets.ImageFolder(tmp_path / "images", transform=torchvision.transforms.ToTensor())
    run = fedappeal.simulate(
        "fedavg",
        data=folder,
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 2)),
        out=tmp_path / "run",
        **QUICK,
        **DEALT,
    )
    assert read_card(run.path / "model.safetensors").class_names == ("ant", "bee")
    with pytest.raises(ConfigError, match="a transform has to make tensors of its images"):
        dealt(torchvision.datasets.ImageFolder(tmp_path / "images"))


def test_columns_of_a_whole_data_set_are_standardised_by_each_clients_training_rows() -> None:
    datasets = pytest.importorskip("datasets")
    generator = np.random.default_rng(0)
    rows = datasets.Dataset.from_dict(
        {"age": generator.normal(60, 9, 90), "pressure": generator.normal(120, 15, 90), "ill": [0, 1] * 45}
    )
    for scale, mean, deviation in (("auto", (0, 0), (1, 1)), ("none", (60, 120), (9, 15))):
        for client in dealt(rows, TableColumns(label="ill"), scale=scale):
            x = client.train.x
            assert isinstance(x, torch.Tensor)
            assert x.dtype == torch.float32
            near = {"auto": 1e-5, "none": 12.0}[scale]
            assert x.mean(0).tolist() == pytest.approx(mean, abs=near)
            assert x.std(0, correction=0).tolist() == pytest.approx(deviation, abs=near)
            assert (client.scaling is None) == (scale == "none")


def test_a_run_of_a_whole_data_set_continues(tmp_path: Path) -> None:
    whole = TensorDataset(*side(90, 0))
    common: dict[str, Any] = {"model": Net, "data": whole}
    run = fedappeal.simulate("fedavg", **common, **DEALT, out=tmp_path / "run", **QUICK)
    longer = fedappeal.simulate("fedavg", **common, **DEALT, out=tmp_path / "longer", **{**QUICK, "rounds": 4})
    assert losses(fedappeal.load(run.path, **common, quiet=True).resume(rounds=4)) == losses(longer)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition": "iid"}, "^clients is missing: the data names no clients"),
        ({"clients": 3}, "^partition is missing: the data names no clients"),
        ({**DEALT, "flip_share": 0.5}, r"^flip_share = 0.5 is not allowed beside data of your own"),
        ({**DEALT, "partition": "natural"}, "^partition = 'natural' is not allowed"),
        ({**DEALT, "clients": 80}, "^clients = 80 is not allowed: the data set's 90 examples are enough for 45"),
    ],
)
def test_a_whole_data_set_needs_clients_and_a_partition(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        fedappeal.simulate(
            "fedavg", model=Net, data=TensorDataset(*side(90, 0)), out=tmp_path / "run", **QUICK, **settings
        )
    assert not (tmp_path / "run").exists()


def test_labels_that_are_no_classes_are_dealt_out_evenly_alone() -> None:
    numbers = TensorDataset(*side(90, 0, "numbers"))
    assert [client.counts for client in dealt(numbers)] == [(18, 12)] * 3
    with pytest.raises(ConfigError, match=r"^partition = 'shards' is not allowed: labels are no classes \(iid\)$"):
        dealt(numbers, partition="shards")


def test_a_dict_names_its_clients(tmp_path: Path) -> None:
    names = ["Köln", "a b", 7]
    common: dict[str, Any] = {"model": Net, **QUICK}
    run = fedappeal.simulate("fedavg", data=dict(zip(names, pairs(3), strict=True)), out=tmp_path / "named", **common)
    assert set(run.clients["client"]) == {"Köln", "a b", "7"}
    assert losses(run) == losses(fedappeal.simulate("fedavg", data=pairs(3), out=tmp_path / "listed", **common))
    with pytest.raises(ConfigError, match="client Köln has no test examples"):
        _ = OwnData({"Köln": (side(9, 0), side(0, 1))}).clients


@pytest.mark.parametrize(
    ("names", "recorded"), [((3, 0, 2), ["3", "0", "2"]), ((0, "", 2), ["0", "", "2"]), ((0, 1, 2), None)]
)
def test_all_clients_have_their_names_or_none_has(names: Any, recorded: Any) -> None:
    facts = OwnData(dict(zip(names, pairs(3), strict=True))).facts
    assert [*facts["clients"].values()] == recorded if recorded else not facts


def test_classes_that_no_label_has_are_said_to_be_named() -> None:
    data = TensorDataset(*side(90, 0))
    data.classes = ["ant", "bee", "cat"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"it has 2 outputs, the classes have 3 names, 'ant' to 'cat'$"):
        fedappeal.simulate("fedavg", data=data, model=Net, **QUICK, **DEALT)


class Endless(IterableDataset[Any]):
    """A stream, with a length that helps nobody."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter([side(1, 0)] * 3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("rows.csv", "a str: read the file first"),
        (Path("rows.csv"), "a PosixPath: read the file first"),
        (DataLoader(TensorDataset(*side(4, 0))), "a DataLoader: give its .dataset"),
        (Endless(), "a Endless, which has no length: collect its examples first"),
        ((pair for pair in pairs()), r"a generator: list\(\) collects it"),
        ([(Endless(), Endless())], "client 0's train: a Dataset needs a length and indices"),
        (np.zeros((3, 2)), "a ndarray; a list, or a dict by client, of"),
        (3, "a int; a list, or a dict by client, of"),
    ],
    ids=["str", "path", "loader", "stream", "generator", "stream of a client", "array", "number"],
)
def test_what_is_no_data_says_what_is(data: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^data is not allowed: {said}"):
        _ = OwnData(data).clients


def test_other_objects_of_pandas_and_datasets_are_no_data() -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    for data in (pandas.Series([1.0, 2.0]), datasets.Dataset.from_dict({"x": [1.0], "y": [0]}).to_iterable_dataset()):
        with pytest.raises(ConfigError, match=f"^data is not allowed: a {type(data).__name__}"):
            _ = OwnData(data).clients
