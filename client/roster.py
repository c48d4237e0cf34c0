"""The clients of one federation in this process, each made on its first message."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from flwr.app import Context, Message

from client.data.cache import Cache
from client.equipment import Equipment
from client.limits.guard import Guard
from client.participant import Participant
from client.settings import NodeSettings
from client.state.store import ContextStore, DiskStore
from client.training.requests import Arithmetic
from fedappeal.core.local_rule import Store
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.system.latest import Latest
from fedappeal.tasks.examples import ClientData

log = logging.getLogger("fedappeal.client")

KEPT = 256
"""Participants with loaded data that are kept; those used longest ago are made again when they are needed."""
KEPT_WITH_OWN_DATA = 2
"""The same of a client with data of its own: each run's split is a copy, and a small device serves many runs."""
EQUIPMENTS = 4
"""The same of what participants share."""


@lru_cache(maxsize=64)
def _run_config(values: tuple[tuple[str, Scalar], ...]) -> RunConfig:
    # A run of another version of the same protocol may have general settings that this one does not know.
    return RunConfig.parse_recorded(dict(values), ignore_unknown=True)


@lru_cache(maxsize=KEPT)
def _node_settings(values: tuple[tuple[str, Scalar], ...]) -> NodeSettings:
    return NodeSettings.parse(dict(values))


def node_of(values: Mapping[str, Scalar]) -> NodeSettings:
    """Return an owner's settings; those of clients that differ in their partition-id alone are checked once."""
    place = values.get("partition-id", -1)
    if type(place) is not int or place < 0 or values.get("data"):
        return _node_settings(tuple(values.items()))
    return _node_settings(tuple({**values, "partition-id": 0}.items())).model_copy(update={"partition_id": place})


class _Node(NamedTuple):
    """The participant of a simulated node, whose settings are the same objects in each of its messages."""

    run_config: Mapping[str, Scalar]
    node_config: Mapping[str, Scalar]
    participant: Participant


class Participants:
    """Participants by their run's and their owner's settings."""

    def __init__(
        self,
        arithmetic: Arithmetic | None = None,
        data: Callable[[int], ClientData] | None = None,
        cache: Cache | None = None,
        kind: Callable[..., Participant] = Participant,
    ) -> None:
        """Begin with none.

        Args:
            arithmetic: trains and evaluates; None: a deployed client's.
            data: a simulator's, a client's data by its number: they are held anyway, so that no participant is let
                go; None: loaded for this client.
            cache: what the clients share; None: one of their own.
            kind: makes a participant.
        """
        self.cache = cache or Cache()
        self._arithmetic = arithmetic or Arithmetic()
        self._data, self._kind = data, kind
        self._participants: OrderedDict[tuple[RunConfig, NodeSettings], Participant] = OrderedDict()
        self._guards: dict[tuple[str, str], Guard] = {}
        self._nodes: dict[int, _Node] = {}
        self._said = False
        self._run_config = Latest(lambda settings: _run_config(tuple(settings.items())))
        self._equipment = lru_cache(maxsize=EQUIPMENTS)(partial(Equipment, cache=self.cache))

    def of(self, context: Context, message: Message | None = None) -> Participant:
        """Return a context's participant, with that context's store, and its owner's limits on a message.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or the message passes one of its limits.
        """
        participant = self._simulated(context, self._data) if self._data else self._deployed(context, message)
        store = participant.store
        if isinstance(store, ContextStore) and not store.holds(context.state):
            participant.store = _store(participant.node, context)
        return participant

    def _deployed(self, context: Context, message: Message | None) -> Participant:
        config, node = self._run_config(context.run_config), node_of(context.node_config)
        if (guard := self._guard(node)) is not None and message is not None:
            guard.begin(message)
        key = (config, node)
        if key not in self._participants:
            self._participants[key] = self._made(config, node, context)
            while len(self._participants) > (KEPT_WITH_OWN_DATA if node.data else KEPT):
                self._participants.popitem(last=False)
        self._participants.move_to_end(key)
        participant = self._participants[key]
        participant.guard = guard
        if not participant.store.durable and participant.gives_goodwill and not self._said:
            self._said = True
            log.info("this client has no state folder: after a restart it gives its goodwill anew")
        return participant

    def _simulated(self, context: Context, data: Callable[[int], ClientData]) -> Participant:
        """Return the participant of a simulated node, made where it is not known or its settings are others now."""
        latest = self._nodes.get(context.node_id)
        if latest and latest.run_config is context.run_config and latest.node_config is context.node_config:
            return latest.participant
        config, node = self._run_config(context.run_config), node_of(context.node_config)
        if latest and latest.participant.config == config and latest.participant.node == node:
            participant = latest.participant
        else:
            participant = self._made(config, node, context, data(node.partition_id))
        self._nodes[context.node_id] = _Node(context.run_config, context.node_config, participant)
        return participant

    def _made(
        self, config: RunConfig, node: NodeSettings, context: Context, data: ClientData | None = None
    ) -> Participant:
        equipment = self._equipment(config, node.of_any_client())
        return self._kind(config, node, _store(node, context), self._arithmetic, data, self.cache, equipment)

    def _guard(self, node: NodeSettings) -> Guard | None:
        """Return the limits of a client that has an owner: a simulator's have neither state nor limits."""
        if not node.state_dir and not node.limits:
            return None
        place = (node.state_dir, node.limits)
        if place not in self._guards:
            self._guards[place] = Guard(node.state_folder, node.limits)
        return self._guards[place]

    def kept(self) -> list[Participant]:
        """Return the participants that are kept."""
        return [*self._participants.values(), *(node.participant for node in self._nodes.values())]

    def clear(self) -> None:
        """Let go of all participants, as a restart does."""
        self._participants.clear()
        self._nodes.clear()


def _store(node: NodeSettings, context: Context) -> Store:
    return DiskStore(node.state_folder) if node.state_folder else ContextStore(context.state)
