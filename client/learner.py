"""One client as its data and model: what travels, local training, measurements, memory."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client.data.cache import Cache
from client.equipment import Equipment
from client.limits.guard import Guard
from client.settings import NodeSettings
from client.state.memory import RunMemory, client_identity
from client.training.models import FLOAT32, arrays_of
from client.training.requests import Arithmetic, EvaluateRequest, GradientRequest, Noise, TrainRequest
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings, Store
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.requirement import LOOKS, Evaluation
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks.examples import ClientData


class Adaptation(NamedTuple):
    """Local training before a model is judged.

    Attributes:
        rule: the local rule's class and settings.
        training: settings that all rules share.
        purpose: what its minibatches and noise are drawn for.
    """

    rule: tuple[type[LocalRule], PluginSettings]
    training: LocalTrainingSettings
    purpose: str

    @classmethod
    def of(cls, rule: LocalRule, training: LocalTrainingSettings, purpose: str) -> "Adaptation":
        """Return the adaptation by a rule."""
        return cls((type(rule), rule.settings), training, purpose)


class JudgedModel(NamedTuple):
    """The latest model that a client judged, and what it measured of it.

    Attributes:
        model: its content hash.
        server_round: the round of the noise, where it was measured with noise; else 0.
        evaluations: by split, and by the local training before it.
    """

    model: str
    server_round: int
    evaluations: dict[str, Evaluation]


class Learner:
    """One client of one run, as far as it trains and measures models on its data.

    Attributes:
        store: where this client remembers; a simulator hands in another one with each message.
        client_id: stable id.
        equipment: what it shares with others.
        model: a model of the task on this client's device, for its structure: its values do not last.
        judged: what it measured of the latest model.
        discloses: what its owner lets replies tell.
        parts: which of the model's arrays travel, and which stay.
        layout: layout of what travels.
        guard: its owner's limits; None: there are none.
        precision: in which it judges models.
    """

    precision = FLOAT32

    def __init__(
        self,
        config: RunConfig,
        node: NodeSettings,
        store: Store,
        arithmetic: Arithmetic | None = None,
        data: ClientData | None = None,
        cache: Cache | None = None,
        equipment: Equipment | None = None,
    ) -> None:
        """Load the client's data, unless they are given.

        Args:
            config: the run's settings.
            node: the owner's settings.
            store: where the client remembers.
            arithmetic: trains and measures; None: one client at a time.
            data: the client's data on its device; None: its own, or those of its partition.
            cache: what it shares with other clients of the process; None: its own.
            equipment: what it shares with those of its run; None: its own.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or do not allow what it names.
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
        self.config = config
        self.node = node
        self.store = store
        self.client_id = client_identity(node, store)
        cache = cache or Cache()
        equipment = equipment or Equipment(config, node.of_any_client(), cache)
        self.equipment, self.strategy = equipment, equipment.strategy()
        self.discloses = equipment.discloses
        self.policy = equipment.policy(self.client_id)
        self._required = equipment.requirement_kind()
        self.device, self.task, self.model = equipment.device, equipment.task, equipment.model
        self._initial, self.parts, self.layout = equipment.initial, equipment.parts, equipment.layout
        self.data = data or (
            cache.own_data(self.task, node.data, self.client_id, self.device, node.columns, config.holds_out)
            if node.data
            else cache.data(self.task, node.partition_id, self.device, config.holds_out)
        )
        self._arithmetic = arithmetic or Arithmetic()
        self.judged = JudgedModel("", 0, {})
        self.guard: Guard | None = None

    @property
    def trainable(self) -> list[str]:
        """Names of the trainable parameters that travel, in the model's order."""
        shared = set(self.parts.shared)
        return [name for name, p in self.model.named_parameters() if p.requires_grad and name in shared]

    # -- what travels, and what stays ---

    def complete(self, shared: Arrays, run_key: str, before: int = 0) -> Arrays:
        """Return the arrays that were sent, and this client's own where some do not travel.

        Args:
            shared: what was sent.
            run_key: which run.
            before: the client's own are those from before this round; 0: as they were at the start.
        """
        if not self.parts.personal:
            return shared
        personal = self.memory(run_key).personal(before)
        return {**(personal or arrays_of(self._initial, self.parts.personal)), **shared}

    def keep_personal(self, arrays: Arrays, run_key: str, server_round: int) -> None:
        """Remember what of a trained model stays with this client."""
        if self.parts.personal:
            self.memory(run_key).keep_personal(server_round, {name: arrays[name] for name in self.parts.personal})
            self.judged = JudgedModel("", 0, {})

    # -- training and measuring ---

    @property
    def judged_split(self) -> str:
        """The split on which this client compares models with its requirement."""
        held_out = self.config.holds_out and self.data.held_out is not None
        return keys.HELD_OUT_SPLIT if held_out else keys.TRAIN_SPLIT

    def count(self, split: str) -> int:
        """Return the number of examples of a split.

        Raises:
            ConfigError: for another name.
        """
        if split == keys.HELD_OUT_SPLIT and (held_out := self.data.held_out) is not None:
            return len(held_out)
        if split not in (keys.TRAIN_SPLIT, keys.TEST_SPLIT, keys.HELD_OUT_SPLIT):
            raise ConfigError(f"{keys.SPLIT} = '{split[:40]}' is not allowed: {keys.TRAIN_SPLIT}, {keys.TEST_SPLIT}")
        return self.data.counts[split == keys.TEST_SPLIT]

    def plain_training(self, settings: Mapping[str, Scalar]) -> LocalTrainingSettings:
        """Return settings of plain steps: these, and the run's, without momentum and weight decay."""
        return LocalTrainingSettings.of(settings, {"momentum": 0.0, "weight-decay": 0.0}, self.config.as_config())

    def trained(
        self,
        arrays: Arrays,
        rule: LocalRule,
        training: LocalTrainingSettings,
        server_round: int,
        purpose: str,
        batches: NDArray[np.int64] | None = None,
    ) -> Arrays:
        """Return the model that a rule trains from ``arrays`` on this client's own data.

        Args:
            arrays: the model to start from, with what is this client's own.
            rule: the local rule.
            training: settings that all rules share.
            server_round: counted from 1; 0 outside a round.
            purpose: what the minibatches and the noise are drawn for.
            batches: the minibatches, rows of the training examples, one row a step; None: drawn.
        """
        data, seed, guard = self.data.train, self.config.seed, self.guard
        if guard is not None:
            guard.check_training(rule, training, len(data))
        draws = training.steps(len(data)) * rule.draws()
        size = training.batch_size
        return self._arithmetic.train(
            TrainRequest(
                task=self.task,
                model=self.model,
                place=self.node.partition_id,
                data=data,
                arrays=arrays,
                rule=rule,
                training=training,
                batches=Minibatches(seed, self.client_id, server_round, len(data), draws, size, purpose)
                if batches is None
                else batches,
                seed=seed,
                client_id=self.client_id,
                server_round=server_round,
                purpose=purpose,
                deadline=guard.deadline if guard is not None else None,
            )
        )

    def adapted(self, arrays: Arrays, adaptation: Adaptation) -> Arrays:
        """Return a model after the local training by which this client adapts it."""
        rule, settings = adaptation.rule
        return self.trained(arrays, rule(settings), adaptation.training, 0, adaptation.purpose)

    def gradient(self, arrays: Arrays, batch: NDArray[np.int64] | None) -> Arrays:
        """Return the gradient of a model's mean training loss; None: all examples."""
        if self.guard is not None and self.guard.deadline is not None:
            self.guard.deadline.check()
        place, data = self.node.partition_id, self.data.train
        return self._arithmetic.gradient(GradientRequest(self.task, self.model, place, data, arrays, batch))

    def measured(
        self,
        arrays: Arrays,
        split: str,
        shared: str = "",
        server_round: int = 0,
        purpose: str = "loss",
        precision: str = FLOAT32,
    ) -> Evaluation:
        """Return a model's loss and metrics on a split.

        Args:
            arrays: the model.
            split: ``train``, ``held-out`` or ``test``.
            shared: its content hash, where other clients may be measuring the same one; else empty.
            server_round: the round of the noise, where ``loss-mode = training`` measures with dropout on.
            purpose: what the noise is drawn for.
            precision: of the forward pass, where there is no noise.
        """
        data = self.data.train if split == keys.TRAIN_SPLIT else self.data.test
        if split == keys.HELD_OUT_SPLIT:
            data = self.data.held_out or self.data.train
        place, noise = self.node.partition_id, None
        if self.config.loss_mode == "training" and split == keys.TRAIN_SPLIT:
            # With noise of its own a client's measurement is like no other's, though the model is the same.
            shared, noise = "", Noise(self.config.seed, f"{self.client_id}/{purpose}", server_round)
        request = EvaluateRequest(self.task, self.model, place, data, arrays, split, shared, noise, precision)
        return self._arithmetic.evaluate(request)

    def memory(self, run_key: str) -> RunMemory:
        """Return what this client remembers of a run."""
        return RunMemory(self.store, run_key)


class LocalWarmUp:
    """A `fedappeal.core.requirement.WarmUp` on one client's data, from w_0."""

    def __init__(self, client: Learner, initial: Arrays) -> None:
        self._client = client
        self._initial = initial

    def _training(self, steps: int, learning_rate: float) -> LocalTrainingSettings:
        settings = {"learning-rate": learning_rate, "local-steps": steps}
        return LocalTrainingSettings.of(settings, self._client.config.as_config())

    def train(self, steps: int, learning_rate: float) -> Arrays:
        """See `WarmUp`."""
        return self._client.trained(self._initial, SGD(), self._training(steps, learning_rate), 0, "warm-up")

    def path(self, steps: int, learning_rate: float) -> Iterator[Arrays]:
        """See `WarmUp`."""
        client, arrays, training = self._client, self._initial, self._training(steps, learning_rate)
        if client.guard is not None:  # the limit is on the whole training
            client.guard.check_training(SGD(), training, client.data.counts[0])
        drawn = Minibatches(
            client.config.seed, client.client_id, 0, client.data.counts[0], steps, training.batch_size, "warm-up"
        )
        yield arrays
        for number, batches in enumerate(np.array_split(np.asarray(drawn), min(LOOKS, steps)), 1):
            stretch = training.model_copy(update={"local_steps": len(batches)})
            arrays = client.trained(arrays, SGD(), stretch, 0, f"warm-up {number}", batches)
            yield arrays

    def train_loss(self, arrays: Arrays) -> float:
        """See `WarmUp`."""
        return self._client.measured(arrays, keys.TRAIN_SPLIT, purpose="requirement").loss

    @property
    def holds_out(self) -> bool:
        """See `WarmUp`."""
        return self._client.judged_split == keys.HELD_OUT_SPLIT

    def judged_loss(self, arrays: Arrays) -> float:
        """See `WarmUp`."""
        return self._client.measured(arrays, self._client.judged_split, purpose="requirement").loss

    def test_score(self, arrays: Arrays) -> float:
        """See `WarmUp`."""
        return self._client.measured(arrays, keys.TEST_SPLIT).score
