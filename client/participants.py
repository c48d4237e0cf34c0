"""The clients of one federation in this process: each made on its first message and kept while it is in use."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message

from client.data.cache import Cache
from client.guard import Guard
from client.participant import Participant
from client.settings import NodeSettings
from client.state import ContextStore, DiskStore, Store
from client.training.requests import Arithmetic
from fedappeal.protocol.config import RunConfig, Scalar
from fedappeal.tasks.examples import ClientData

KEPT = 256
"""Participants that are kept; those used longest ago are made again when they are needed."""
KEPT_WITH_OWN_DATA = 2
"""The same of a client with data of its own: each run's split is a copy, and a small device serves many runs."""


@lru_cache(maxsize=64)
def _run_config(values: tuple[tuple[str, Scalar], ...]) -> RunConfig:
    # A run of another version of the same protocol may have general settings that this one does not know.
    return RunConfig.parse(dict(values), ignore_unknown=True)


@lru_cache(maxsize=KEPT)
def _node_settings(values: tuple[tuple[str, Scalar], ...]) -> NodeSettings:
    return NodeSettings.parse(dict(values))


def _items(values: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    return tuple(values.items())


class Participants:
    """Participants by their run's and their owner's settings."""

    def __init__(
        self,
        arithmetic: Arithmetic | None = None,
        data: Callable[[int], ClientData] | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Begin with none.

        Args:
            arithmetic: trains and evaluates; None: a deployed client's.
            data: a client's data by its number; None: loaded for this client.
            cache: what the clients share; None: one of their own.
        """
        self.cache = cache or Cache()
        self._arithmetic = arithmetic or Arithmetic()
        self._data = data
        self._participants: OrderedDict[tuple[RunConfig, NodeSettings], Participant] = OrderedDict()
        self._guards: dict[tuple[str, str], Guard] = {}

    def of(self, context: Context, message: Message | None = None) -> Participant:
        """Return a context's participant, with that context's store, and its owner's limits on a message.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or the message passes one of its limits.
        """
        config, node = _run_config(_items(context.run_config)), _node_settings(_items(context.node_config))
        guard = self._guard(node)
        if guard is not None and message is not None:
            guard.begin(message)
        key = (config, node)
        if key not in self._participants:
            data = self._data(node.partition_id) if self._data else None
            store = _store(node, context)
            self._participants[key] = Participant(config, node, store, self._arithmetic, data, self.cache)
            while len(self._participants) > (KEPT_WITH_OWN_DATA if node.data else KEPT):
                self._participants.popitem(last=False)
        self._participants.move_to_end(key)
        participant = self._participants[key]
        store = participant.store
        if isinstance(store, ContextStore) and not store.holds(context.state):
            participant.store = _store(node, context)
        participant.guard = guard
        return participant

    def _guard(self, node: NodeSettings) -> Guard | None:
        """Return the limits of a client that has an owner: a simulator's have neither state nor limits."""
        if not node.state_dir and not node.limits:
            return None
        place = (node.state_dir, node.limits)
        if place not in self._guards:
            self._guards[place] = Guard(Path(node.state_dir) if node.state_dir else None, node.limits)
        return self._guards[place]

    def kept(self) -> list[Participant]:
        """Return the participants that are kept, the one used longest ago first."""
        return list(self._participants.values())

    def clear(self) -> None:
        """Let go of all participants, as a restart does."""
        self._participants.clear()


def _store(node: NodeSettings, context: Context) -> Store:
    return DiskStore(Path(node.state_dir)) if node.state_dir else ContextStore(context.state)
