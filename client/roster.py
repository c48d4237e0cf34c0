"""The clients of one federation in this process, each made on its first message."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from flwr.app import Context, Message

from client.learner import Learners
from client.limits.guard import Guard
from client.limits.room import Room
from client.participant import Participant
from client.settings import NodeSettings
from client.state.memory import client_identity
from client.state.store import ContextStore, DiskStore
from client.terms import Terms
from fedappeal.core.local_rule import Store
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.last_result import LastResult

log = logging.getLogger("fedappeal.client")

KEPT = 256
"""Participants with loaded data that are kept; those used longest ago are made again when they are needed."""
KEPT_WITH_OWN_DATA = 2
"""The same of a client with data of its own: each run's split is a copy, and a small device serves many runs."""
TERMS = 4
"""The same of what participants share."""


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


def check_place(config: RunConfig, node: NodeSettings) -> None:
    """Check that an owner's settings name data that a run has.

    Raises:
        ConfigError: they name none, or another number of clients.
    """
    total = config.clients + config.unseen_clients
    node.check_data_source()
    if not node.data and not 0 <= node.partition_id < total:
        raise ConfigError(
            f"partition-id = {node.partition_id} is not allowed: 0 to {total - 1} "
            f"(clients = {config.clients}, unseen-clients = {config.unseen_clients})"
        )
    if node.num_partitions not in (-1, total):
        raise ConfigError(
            f"num-partitions = {node.num_partitions} is not allowed: the run has {total} clients "
            f"(clients = {config.clients}, unseen-clients = {config.unseen_clients})"
        )


class Participants:
    """Participants by their run's and their owner's settings."""

    def __init__(
        self,
        learners: Learners,
        kind: Callable[..., Participant] = Participant,
        store: Callable[[NodeSettings, Context], Store] | None = None,
    ) -> None:
        """Begin with none.

        Args:
            learners: makes what participants hold.
            kind: makes a participant.
            store: makes a client's memory; None: `store_of`.
        """
        self._learners, self._kind, self._store_of = learners, kind, store or store_of
        self._participants: OrderedDict[tuple[RunConfig, NodeSettings], Participant] = OrderedDict()
        self._guards: dict[tuple[str, str], Guard] = {}
        self._nodes: dict[int, _Node] = {}
        self._said = False
        # A run of another version of the same protocol may have general settings that this one does not know.
        self._run_config = LastResult(partial(RunConfig.parse_recorded, ignore_unknown=True))
        self._terms = lru_cache(maxsize=TERMS)(lambda run, node: Terms(run, node, learners.strategy_of(run)))

    def of(self, context: Context, message: Message | None = None) -> Participant:
        """Return a context's participant, with that context's store, and its owner's limits on a message.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or the message passes one of its limits.
        """
        participant = self._simulated(context) if self._learners.simulated else self._deployed(context, message)
        store = participant.store
        if isinstance(store, ContextStore) and not store.holds(context.state):
            participant.store = self._store_of(participant.node, context)
        return participant

    def _deployed(self, context: Context, message: Message | None) -> Participant:
        config, node = self._run_config(context.run_config), node_of(context.node_config)
        if (guard := self._guard(node)) is not None and message is not None:
            guard.begin(message)
        key = (config, node)
        if key not in self._participants:
            self._learners.room = None if guard is None else Room(guard, self._let_go)
            try:
                if self._learners.room is not None:
                    self._learners.room.check_clients(config)
                self._participants[key] = self.new_participant(config, node, self._store_of(node, context))
            except Exception:
                self._forget_shared()
                raise
            while len(self._participants) > (KEPT_WITH_OWN_DATA if node.data else KEPT):
                self._participants.popitem(last=False)
        self._participants.move_to_end(key)
        participant = self._participants[key]
        participant.guard = guard
        if not participant.store.durable and participant.gives_goodwill and not self._said:
            self._said = True
            log.info("this client has no state folder: after a restart it gives its goodwill anew")
        return participant

    def _simulated(self, context: Context) -> Participant:
        """Return the participant of a simulated node.

        It is made where the node is not known or its settings are others now.
        """
        latest = self._nodes.get(context.node_id)
        if latest and latest.run_config is context.run_config and latest.node_config is context.node_config:
            return latest.participant
        config, node = self._run_config(context.run_config), node_of(context.node_config)
        if latest and latest.participant.config == config and latest.participant.node == node:
            participant = latest.participant
        else:
            participant = self.new_participant(config, node, self._store_of(node, context))
        self._nodes[context.node_id] = _Node(context.run_config, context.node_config, participant)
        return participant

    def new_participant(self, config: RunConfig, node: NodeSettings, store: Store) -> Participant:
        """Return a new participant, which is not kept.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or do not allow what it names.
        """
        check_place(config, node)
        client_id = client_identity(node, store)
        terms, learner = self._terms(config, node.of_any_client()), self._learners(config, node, client_id)
        return self._kind(config, node, store, client_id, terms, learner)

    def _guard(self, node: NodeSettings) -> Guard | None:
        """Return the limits of a client that has an owner: a simulator's have neither state nor limits."""
        if not node.state_dir and not node.limits:
            return None
        place = (node.state_dir, node.limits)
        if place not in self._guards:
            self._guards[place] = Guard(node.state_folder, node.limits)
        return self._guards[place]

    def kept_participants(self) -> list[Participant]:
        """Return the participants that are kept."""
        return [*self._participants.values(), *(node.participant for node in self._nodes.values())]

    def drop(self, participant: Participant) -> None:
        """Let go of a participant of a run that was refused, and of what was loaded for it."""
        key = (participant.config, participant.node)
        if self._participants.get(key) is participant:
            del self._participants[key]
            self._forget_shared()

    def clear(self) -> None:
        """Let go of all participants, as a restart does."""
        self._participants.clear()
        self._nodes.clear()

    def _let_go(self) -> None:
        self.clear()
        self._forget_shared()

    def _forget_shared(self) -> None:
        """Let go of what participants share; those that are kept have theirs still."""
        self._learners.clear()
        self._terms.cache_clear()


def store_of(node: NodeSettings, context: Context) -> Store:
    """Return a client's memory: in its state folder, else in its context."""
    return DiskStore(node.state_folder) if node.state_folder else ContextStore(context.state)
