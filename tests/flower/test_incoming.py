"""What fedappeal.flower.incoming relies on: what Flower raises where it reads what a client wrote."""

from collections.abc import Callable

import pytest
from flwr.app import Error, Message

from fedappeal.flower.messages import is_from_superlink
from tests.flower.runtime_api import World, joins
from tests.hostile.forged import Forged, announce, content, forged, metrics, model, npy, reply

MIB = 1 << 20


def bomb() -> Forged:
    return model(bytes(256 * 1024), ids=[0] * 4096)


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
