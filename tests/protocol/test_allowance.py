"""What a reply may hold: known from the model that was sent."""

import numpy as np

from fedappeal.protocol.packing import Allowance, array_record

MIB = 1 << 20


def test_it_follows_the_model_that_was_sent() -> None:
    model = array_record({"a": np.zeros(4 * MIB, np.float32), "b": np.zeros(1, np.float64)})
    size = sum(len(array.data) for array in model.values())
    assert 16 * MIB < size < 16 * MIB + 500
    allowed = Allowance.of_models(model)
    assert allowed == Allowance(objects=64 + 1 + 4 + 32, bytes=MIB + 2 * size + 2048)
    assert Allowance.of_models(model, 2) == Allowance(objects=64 + 2 * 37, bytes=MIB + 2 * (2 * size + 2048))


def test_without_a_model_a_reply_holds_numbers_and_texts() -> None:
    assert Allowance() == Allowance(objects=64, bytes=MIB)
