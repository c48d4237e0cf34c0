"""What a SuperLink with a database does once for several requests, where Flower does it for each.

At every request for an object Flower looks up the node's key, ends expired tasks and looks up the run (a transaction
that writes), and adds the object's bytes to the run's traffic (another one). Within a quarter of a second the answers
are the same, and sums may be added up first. A SuperLink in memory does all that in microseconds and is left alone.

So a run that has just ended takes replies for up to `REMEMBERED` seconds more, and the traffic that Flower reports is
up to `TRAFFIC_EVERY` seconds old; as much of it is lost when the SuperLink ends.

The objects of messages are kept in memory: a run ends with the SuperLink that it was started on, and its messages
with it, so that a database of them serves nothing. Nodes, keys and runs stay in the file.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any, Generic, TypeVar

from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink import config_loader

from fedappeal.flower.processes import replace_name
from fedappeal.flower.versions import fleet_handlers

REMEMBERED = 0.25
"""Seconds for which an answer is remembered."""
TRAFFIC_EVERY = 1.0
"""Seconds between two additions to the runs' traffic."""
_MOST = 10_000

object_stores: Any = import_module("flwr.supercore.object_store.object_store_factory")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Answers that count for a short time.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[K, tuple[float, V]] = {}

    def get(self, key: K, ask: Callable[[], V], lasting: Callable[[V], bool]) -> V:
        """Return the answer for a key; ``lasting``: whether an answer may be remembered."""
        now = self._clock()
        with self._lock:
            remembered = self._until.get(key)
        if remembered is not None and remembered[0] > now:
            return remembered[1]
        answer = ask()
        if lasting(answer):
            with self._lock:
                if len(self._until) >= _MOST:
                    self._until.clear()
                self._until[key] = (now + REMEMBERED, answer)
        return answer

    def forget(self) -> None:
        """Forget all answers."""
        with self._lock:
            self._until.clear()


class Traffic:
    """Bytes of the runs that are added to the database together.

    Args:
        store: Flower's `store_traffic`.
    """

    def __init__(self, store: Callable[..., None]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._runs: dict[int, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        """Add to a run's bytes; arguments and errors as Flower's, but for a run that is not known."""
        if min(bytes_sent, bytes_recv) < 0 or bytes_sent == bytes_recv == 0:
            self._store(run_id, bytes_sent=bytes_sent, bytes_recv=bytes_recv)  # raises
        with self._lock:
            run = self._runs[run_id]
            run[0] += bytes_sent
            run[1] += bytes_recv

    def write(self) -> None:
        """Add what has come together to the database."""
        with self._lock:
            runs = dict(self._runs)
            self._runs.clear()
        for run_id, (sent, received) in runs.items():
            try:
                self._store(run_id, bytes_sent=sent, bytes_recv=received)
            except Exception:  # a figure for information, and nothing waits for it
                FLOWER_LOGGER.warning("the traffic of run %s is not recorded", run_id)

    def write_always(self) -> None:
        """Write every `TRAFFIC_EVERY` seconds, without end."""
        while True:
            time.sleep(TRAFFIC_EVERY)
            self.write()


def spare_sql(state: Any) -> None:
    """Spare a link state in a database what requests repeat; one in memory is left as it is."""
    if not isinstance(state, SqlLinkState):
        return
    nodes: Remembered[bytes, int | None] = Remembered()
    runs: Remembered[tuple[int, tuple[str, ...]], str | None] = Remembered()
    handlers = fleet_handlers()
    node_id_of, delete_node, check = state.get_node_id_by_public_key, state.delete_node, handlers.check_abort

    def node_id(public_key: bytes) -> int | None:
        return nodes.get(public_key, lambda: node_id_of(public_key), lambda node: node is not None)

    def delete(owner_aid: str, node_id: int) -> None:
        try:
            delete_node(owner_aid, node_id)
        finally:
            nodes.forget()

    def check_abort(run_id: int, abort_status_list: list[str], of: Any) -> str | None:
        key = (run_id, tuple(abort_status_list))
        return runs.get(key, lambda: check(run_id, abort_status_list, of), lambda problem: problem is None)

    traffic = Traffic(state.store_traffic)
    replace_name(state, "get_node_id_by_public_key", node_id)
    replace_name(state, "delete_node", delete)
    replace_name(state, "store_traffic", traffic.add)
    replace_name(handlers, "check_abort", check_abort)
    threading.Thread(target=traffic.write_always, name="traffic", daemon=True).start()


class WholeTrees(InMemoryObjectStore):
    """Objects in memory, of which none is deleted while a tree that names it is registered.

    Messages share objects. Flower locks its store for one object of a tree at a time: one that is there may go, with
    the last message that has it, before the tree's own message counts as its owner. Flower then raises KeyError:
    a ServerApp's push fails, and with it the run, or a stock SuperNode's reply is lost.
    """

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Register a tree as one step; return the ids of the objects that have not come."""
        with self.lock_store:
            return super().preregister(run_id, object_tree)


def spare_superlink() -> None:
    """Keep the objects of messages in the memory of the SuperLink that this process will be."""
    replace_name(object_stores, "InMemoryObjectStore", WholeTrees)
    replace_name(config_loader, "ObjectStoreFactory", lambda _database: ObjectStoreFactory())
