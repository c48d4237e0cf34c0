"""Examples of any form: parts, fingerprints, and what is refused."""

import pytest
import torch

from fedappeal.tasks.examples import ClientData, Split, map_parts, only_tensor, take, tensors_of

WORDS = {"input_ids": torch.arange(12).view(4, 3), "mask": torch.ones(4, 3, dtype=torch.bool)}


def test_rows_of_every_tensor_are_taken() -> None:
    split = Split((WORDS, torch.arange(4.0)), torch.arange(4))
    assert len(split) == 4
    part = split.take(torch.tensor([2, 0]))
    assert [(path, tensor.tolist()) for path, tensor in tensors_of(part.x)] == [
        ("/0/input_ids", [[6, 7, 8], [0, 1, 2]]),
        ("/0/mask", [[True] * 3] * 2),
        ("/1", [2.0, 0.0]),
    ]
    assert part.y.tolist() == [2, 0]  # type: ignore[union-attr]
    assert len(split.take(slice(1, 4))) == 3


def test_indices_of_two_axes_give_two_axes() -> None:
    rows = torch.tensor([[0, 3], [1, 1]])
    assert torch.equal(take(WORDS["input_ids"], rows), WORDS["input_ids"][rows])  # type: ignore[arg-type]


def test_a_lone_tensor_is_told_from_a_structure() -> None:
    assert only_tensor(WORDS) is None
    assert only_tensor(WORDS["mask"]) is WORDS["mask"]


def test_equal_data_has_an_equal_fingerprint_whatever_its_type() -> None:
    def data(**changed: torch.Tensor) -> ClientData:
        split = Split({**WORDS, **changed}, torch.zeros(4, dtype=torch.bfloat16))
        return ClientData(split, split)

    assert data().fingerprint == data().fingerprint
    others = [
        data(mask=torch.ones(4, 3)),
        data(mask=torch.zeros(4, 3, dtype=torch.bool)),
        data(more=torch.ones(4)),
    ]
    assert len({data().fingerprint, *(other.fingerprint for other in others)}) == 4


def test_the_fingerprint_of_floats_and_labels_is_what_it_was() -> None:
    # Stored requirements are found by it: it must not change from version to version.
    split = Split(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1]))
    assert ClientData(split, split.take(slice(2))).fingerprint == "21fc8c9745851cd2"


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, "different keys"),
        ((torch.ones(1),), (torch.ones(1), torch.ones(1)), "different lengths"),
        (torch.ones(1), {"a": torch.ones(1)}, "in place of a dict"),
    ],
)
def test_clients_of_different_form_are_refused(one: object, other: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        map_parts(torch.cat, [one, other])  # type: ignore[list-item, arg-type]
