"""What fedappeal.flower.grid.incoming relies on: what Flower raises where it reads what a client wrote."""

import json
from collections.abc import Callable

import pytest
from flwr.app import Error, Message

from fedappeal.flower.messages import is_from_superlink
from fedappeal.protocol import keys
from tests.flower.runtime_api import World, joins
from tests.hostile.forged import Forged, announce, array, content, forged, metrics, model, npy, record, reply

MIB = 1 << 20


CHUNK = bytes(256 * 1024)
SMALL = metrics()


def bomb() -> Forged:
    return model(CHUNK, ids=[0] * 20)


def early_chunk() -> Forged:
    """Its chunk is named beside its records, too, so that it comes with what says how large arrays are."""
    held = record(flat=array([CHUNK], (4,), ids=[0] * 60))
    body = json.dumps({keys.ARRAYS: held.id, keys.METRICS: SMALL.id}).encode()
    return forged("RecordDict", body, held, SMALL, forged("ArrayChunk", CHUNK))


def late_array() -> Forged:
    """An array that is announced where chunks are, and its chunk beside the records."""
    held = Forged(array([CHUNK], (4,), ids=[0] * 60).content)
    inner = content(a=record(flat=held))
    body = json.dumps({keys.ARRAYS: inner.id, keys.METRICS: SMALL.id}).encode()
    return forged("RecordDict", body, inner, SMALL, forged("ArrayChunk", CHUNK))


def garbage() -> Forged:
    return forged("RecordDict", b'{"arrays": \xff')


def absent_child() -> Forged:
    true = model(npy(4))
    return Forged(true.content)


def odd_numbers() -> Forged:
    return content(arrays=forged("ArrayRecord", b"[" * 5000 + b"]" * 5000))


FORGERIES: dict[str, tuple[Callable[[], Forged], str]] = {
    "garbage body": (garbage, "cannot be read: UnicodeDecodeError"),
    "wrong record": (lambda: forged("ArrayRecord", b"{}"), "cannot be read: MessageInitializationError"),
    "one level too deep": (lambda: content(a=content(b=model(npy(4)))), "nested more than 5 deep"),
    "thousands of records": (
        lambda: content(**{f"r{k}": metrics(k=k) for k in range(100)}),
        "more than the",
    ),
    "announces 600 MB": (lambda: model(npy(4), shape=(150_000_000,)), "announces 600000000"),
    "larger than announced": (lambda: model(bytes(3 * MIB)), "an object of its reply is too large: 31457"),
    "one chunk again and again": (
        bomb,
        "an array of shape (4,) and dtype float32 is too large",
    ),
    "one chunk thousands of times": (lambda: model(b"", ids=[0] * 4096), "arrays of 4096 chunks are not allowed"),
    "a chunk that comes early": (early_chunk, "an array of shape (4,) and dtype float32 is too large"),
    "an array that comes late": (late_array, "an array is not where arrays are"),
    "thousands of dimensions": (lambda: model(npy(4), shape=(1,) * 4000), "has at most 64 dimensions"),
    "an array of many words": (lambda: model(npy(4), shape=(1,) * 40_000), "bytes to say what it is"),
    "nested JSON": (odd_numbers, "cannot be read: RecursionError"),
    "missing parts": (absent_child, "cannot be read: KeyError"),
    "shape of texts": (lambda: model(npy(4), shape=("a",)), "cannot be read: ValueError"),  # type: ignore[arg-type]
    "negative shape": (lambda: model(npy(4), shape=(-4,)), ""),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_whatever_is_wrong_with_a_reply_is_its_clients_error(world: World, name: str) -> None:
    make, reason = FORGERIES[name]
    node, honest = world.node(), world.node()
    node.forge(make())
    honest.answer(joins(honest.message))
    got = world.pull(node, honest)
    assert got[honest.id].has_content()
    if not reason:
        assert got[node.id].has_content(), "the checks of strategies find this"
        return
    assert reason in str(got[node.id].error.reason)
    assert not is_from_superlink(got[node.id])
    assert world.inbox._coming == {}


def test_a_root_that_is_no_message_is_its_clients_error(world: World) -> None:
    node = world.node()
    proto, _ = reply(node.message)
    announce(node.fleet, node.node_id, proto, model(npy(4))).push()
    (got,) = world.pull(node).values()
    assert "RecordDict came where a message was due" in str(got.error.reason)


def test_a_reply_that_names_another_client_is_of_the_node_that_sent_it(world: World) -> None:
    node, other = world.node(), world.node()
    proto, _ = reply(node.message)
    _, root = reply(other.message, model(npy(4)))
    announce(node.fleet, node.node_id, proto, root).push()
    (got,) = world.pull(node, other).values()
    assert (got.metadata.reply_to_message_id, got.metadata.src_node_id) == (node.id, node.node_id)


def test_a_client_cannot_speak_for_the_superlink(world: World) -> None:
    node = world.node()
    node.answer(Message(Error(3, "unavailable"), reply_to=node.message))
    (got,) = world.pull(node).values()
    assert got.error.reason == "unavailable"
    assert not is_from_superlink(got)


def test_arrays_that_came_are_bytes_as_flowers_own(world: World) -> None:
    node = world.node()
    node.answer(joins(node.message))
    (got,) = world.pull(node).values()
    assert type(got.content.array_records[keys.ARRAYS]["flat"].data) is bytes
