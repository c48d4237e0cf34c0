"""What `object_store` relies on: how Flower registers the objects of a message, and where it makes its store."""

import hashlib
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store import in_memory_object_store
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink import config_loader

from fedappeal.flower.superlink.object_store import AtomicObjectStore, keep_objects_in_memory, object_stores


def test_it_replaces_what_flower_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where Flower asks in another way."""
    assert "ObjectStoreFactory(database)" in inspect.getsource(config_loader)
    monkeypatch.setattr(config_loader, "ObjectStoreFactory", config_loader.ObjectStoreFactory)
    monkeypatch.setattr(object_stores, "InMemoryObjectStore", InMemoryObjectStore)
    keep_objects_in_memory()
    factory: Any = config_loader.ObjectStoreFactory
    assert isinstance(factory("state.db").store(), AtomicObjectStore)


def register_while_another_goes(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a message's tree; the only other message with the same content is deleted in the midst of it."""
    first, second, content = (hashlib.sha256(name).hexdigest() for name in (b"first", b"second", b"content"))

    def tree(root: str) -> ObjectTree:
        return ObjectTree(object_id=root, children=[ObjectTree(object_id=content)])

    store.preregister(1, tree(first))
    deleting = threading.Thread(target=store.delete, args=(first,))

    def nodes(of: ObjectTree) -> Iterator[ObjectTree]:
        yield from of.children
        deleting.start()
        deleting.join(0.5)
        yield of

    monkeypatch.setattr(in_memory_object_store, "iterate_object_tree", nodes)
    try:
        store.preregister(1, tree(second))
    finally:
        deleting.join()
    assert store.get_object_tree(second) == tree(second)


def test_a_tree_is_registered_as_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    register_while_another_goes(AtomicObjectStore(), monkeypatch)


def test_flowers_own_store_still_needs_that(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError):
        register_while_another_goes(InMemoryObjectStore(), monkeypatch)
