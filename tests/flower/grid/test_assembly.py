"""What fedappeal.flower.grid.assembly relies on: how Flower takes arrays apart, and that each byte is held once."""

import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import InflatableObject, get_all_nested_objects

from fedappeal.flower.grid.assembly import Assembly, TooLong
from fedappeal.flower.messages import be_sender
from fedappeal.protocol.packing import Allowance

MIB = 1 << 20


def apart(content: InflatableObject) -> dict[str, bytes]:
    return {object_id: item.deflate() for object_id, item in get_all_nested_objects(content).items()}


def sending(content: RecordDict) -> Message:
    be_sender(7, 1, 9)
    return Message(content, 5, "train")


def together(content: RecordDict, order: int = 1, most: int = 64 * MIB) -> RecordDict:
    """A content as it comes: what is said of the arrays first, then the chunks in some order."""
    message = sending(content)
    objects = apart(message)
    chunks = [each for each, held in objects.items() if held.startswith(b"ArrayChunk")][::order]
    contents = {each: held for each, held in objects.items() if each not in chunks}
    assembly = Assembly(Allowance(objects=64, bytes=most))
    assembly.begin(contents)
    for each in chunks:
        contents[each] = objects[each]
        assembly.advance(contents)
    assert not any(each in contents for each in chunks), "each is let go of with its last use"
    return assembly.message(message.object_id, contents).content


def model() -> RecordDict:
    """Two records: chunks that differ, chunks that are equal, an array that is there twice, one of a single chunk."""
    draws = np.random.default_rng(0)
    values = Array(draws.standard_normal(3 * MIB, dtype=np.float32))
    zeros, small = Array(np.zeros(6 * MIB, np.float32)), Array(np.arange(4))
    return RecordDict({"a": ArrayRecord({"w": values, "z": zeros}), "b": ArrayRecord({"w": values, "s": small})})


@pytest.mark.parametrize("order", [1, -1])
def test_arrays_are_those_that_were_sent_in_whatever_order_their_chunks_come(order: int) -> None:
    sent = model()
    got = together(sent, order)
    for name, record in sent.array_records.items():
        for key, array in record.items():
            np.testing.assert_array_equal(got.array_records[name][key].numpy(), array.numpy())
    assert got.object_id == sent.object_id


def test_more_than_is_allowed_is_refused_while_it_comes() -> None:
    with pytest.raises(TooLong, match=r"shape \(6291456,\) and dtype float32 is too large"):
        together(RecordDict({"a": ArrayRecord({"z": Array(np.zeros(6 * MIB, np.float32))})}), most=16 * MIB)


def test_a_large_array_is_in_memory_once() -> None:
    size = 64 * MIB
    draws = np.random.default_rng(0)
    array = Array(draws.standard_normal(size // 4, dtype=np.float32))
    sent = sending(RecordDict({"a": ArrayRecord({"w": array})}))
    objects = apart(sent)
    chunks = [each for each, held in objects.items() if held.startswith(b"ArrayChunk")]
    contents = {each: held for each, held in objects.items() if each not in chunks}
    assembly = Assembly(Allowance(objects=64, bytes=2 * size))
    assembly.begin(contents)
    tracemalloc.start()
    for each in chunks:
        contents[each] = bytes(bytearray(objects.pop(each)))  # memory of its own, as what comes over a connection has
        assembly.advance(contents)
    assembly.message(sent.object_id, contents)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.4 * size


@pytest.mark.parametrize("short", [0, 1])
def test_what_chunks_may_hold_is_counted_to_the_byte(short: int) -> None:
    array = Array(np.arange(3 * MIB, dtype=np.float64))
    content = RecordDict({"a": ArrayRecord({"w": array})})
    with pytest.raises(TooLong, match="its chunks make more") if short else nullcontext():
        together(content, most=len(array.data) - short)


def test_as_many_chunks_as_are_allowed() -> None:
    array = Array(np.random.default_rng(0).standard_normal(6 * MIB))  # 48 MiB and a header: 10 chunks of 5 MiB
    objects = apart(RecordDict({"a": ArrayRecord({"w": array})}))
    for allowed, error in ((10, nullcontext()), (9, pytest.raises(ValueError, match="10 chunks are not allowed"))):
        with error:
            Assembly(Allowance(objects=allowed, bytes=64 * MIB)).begin(objects)
