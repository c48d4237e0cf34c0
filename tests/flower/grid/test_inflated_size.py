"""What fedappeal.flower.node.objects relies on: how Flower writes down the pieces of an array."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedappeal.flower import messages
from fedappeal.flower.node.objects import Parcel, announcement, inflated_size


def contents(values: np.ndarray) -> dict[str, bytes]:
    messages.be_sender(7, 1, 9)
    parcel = Parcel.of(Message(RecordDict({"arrays": ArrayRecord({"w": Array(values)})}), 5, "train", ttl=60.0))
    announced = announcement(parcel.message, parcel.tree)
    return parcel.contents({announced.object_id, *announced.parts})


@pytest.mark.parametrize("megabytes", [1, 40])
def test_a_piece_counts_as_often_as_it_is_named(megabytes: int) -> None:
    zeros = contents(np.zeros(megabytes * 250_000, np.float32))
    drawn = contents(np.random.default_rng(0).standard_normal(megabytes * 250_000).astype(np.float32))
    assert sum(map(len, zeros.values())) < 15e6  # Flower sends equal pieces once
    for found in (inflated_size(zeros), inflated_size(drawn)):
        assert found == pytest.approx(megabytes * 1e6, abs=5000)


def test_what_is_no_object_raises() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        inflated_size({"a": b"nonsense"})
