"""The objects of messages, in the SuperLink's memory.

A run and its messages end with the SuperLink.

Nodes, keys and runs stay in the database.
"""

from importlib import import_module
from typing import Any

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink import config_loader

from fedappeal.flower.processes import replace_name

object_stores: Any = import_module("flwr.supercore.object_store.object_store_factory")


class AtomicObjectStore(InMemoryObjectStore):
    """A store of objects in memory that deletes none named by a registered tree.

    Messages share objects. Flower locks its store for one object of a tree at a time: one that is there may go, with
    the last message that has it, before the tree's own message counts as its owner. Flower then raises KeyError:
    a ServerApp's push fails, and with it the run, or a stock SuperNode's reply is lost.
    """

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Register a tree in one step; return the ids of missing objects."""
        with self.lock_store:
            return super().preregister(run_id, object_tree)


def keep_objects_in_memory() -> None:
    """Keep the objects of messages in the memory of this process's SuperLink."""
    replace_name(object_stores, "InMemoryObjectStore", AtomicObjectStore)
    replace_name(config_loader, "ObjectStoreFactory", lambda _database: ObjectStoreFactory())
