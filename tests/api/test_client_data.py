"""Own data: what a list of (train, test) pairs may hold, and what is said of one that cannot be used."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedappeal.api.client_data import clients_of, split_of
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import ClientData, Split
from tests.api.blobs import pairs, side


class Squares(Dataset[Any]):
    """Number n, with its square as the label."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        if place >= 4:
            raise IndexError
        return {"n": torch.tensor([place])}, float(place**2)


def test_pairs_keep_their_tensors() -> None:
    given = pairs(3)
    clients = clients_of(given)
    assert len(clients) == 3
    assert clients[2].train.x is not None
    assert torch.equal(clients[2].train.x, given[2][0][0])  # type: ignore[arg-type]
    assert torch.equal(clients[2].test.y, given[2][1][1])  # type: ignore[arg-type]


def test_datasets_arrays_splits_and_client_data_are_the_same_examples() -> None:
    x, y = side(6, 0)
    forms: list[Any] = [(x, y), TensorDataset(x, y), (x.double().numpy(), y.tolist()), Split(x, y)]
    found = [clients_of([(form, form)])[0] for form in forms]
    found += clients_of([ClientData(Split(x, y), Split(x, y))])
    assert len({client.fingerprint for client in found}) == 1


def test_items_of_a_dataset_become_one_batch() -> None:
    split = split_of(Squares(), "it")
    assert isinstance(split.x, dict)
    assert split.x["n"].tolist() == [[0], [1], [2], [3]]
    assert isinstance(split.y, torch.Tensor)
    assert split.y.dtype == torch.float32
    assert split.y.tolist() == [0, 1, 4, 9]


def test_inputs_may_be_several_tensors() -> None:
    ids, mask = torch.zeros(3, 5, dtype=torch.int64), torch.ones(3, 5, dtype=torch.bool)
    split = split_of(({"ids": ids, "mask": mask}, np.arange(3)), "it")
    assert isinstance(split.x, dict)
    assert split.x["mask"].dtype == torch.bool
    assert isinstance(split_of(((ids, mask), np.arange(3)), "it").x, tuple)


def wrong(change: str) -> Sequence[Any]:
    data: list[Any] = list(pairs(3))
    (x, y), test = data[2]
    data[2] = {
        "no pair": (x, y, test),
        "lengths": ((x[:5], y), test),
        "shape": ((x[:, :4], y), test),
        "type": ((x.long(), y), test),
        "form": (({"x": x}, y), test),
        "empty": ((x, y), (x[:0], y[:0])),
        "nan": ((x.clone().fill_(torch.nan), y), test),
        "texts": ((["a"] * 20, y), test),
        "one": (x, test),
    }[change]
    return data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no pair", "client 2 is a tuple of length 3; a list, or a dict by client, of (train, test) pairs"),
        ("lengths", "client 2's train: a Split has tensors with one row an example: x (5, 6), y (20,)"),
        ("shape", "client 2's train x is float32 (4,) an example, client 0's train x float32 (6,)"),
        ("type", "client 2's train x is int64 (6,) an example, client 0's train x float32 (6,)"),
        ("form", "client 2's train x is /x float32 (6,) an example"),
        ("empty", "client 2 has no test examples; at least 1 is needed"),
        ("nan", "client 2's train x holds NaN or infinity"),
        ("texts", "client 2's train holds <U"),
        ("one", "client 2's train is a Tensor; (x, y), a torch Dataset or a Split is"),
    ],
)
def test_what_cannot_be_used_is_one_line(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        clients_of(wrong(change))
    assert "\n" not in str(refused.value)


def test_no_client_is_refused() -> None:
    with pytest.raises(ConfigError, match="it holds no client"):
        clients_of([])
