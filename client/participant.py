"""One client of one run: its data, requirement, decision, training and evaluation.

Everything here is the client's own side of a message; what a message looks like is in `client.app`.
"""

import logging
import math
from collections.abc import Iterator, Mapping

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from client.data.cache import Cache
from client.equipment import Equipment
from client.judgement import Adaptation, JudgedModel
from client.limits.guard import Guard
from client.requirement import made, read_requirement, stored_requirement
from client.settings import NodeSettings
from client.state import preferred
from client.state.memory import RunMemory, client_identity
from client.training.models import arrays_of
from client.training.noise import Noise
from client.training.precision import FLOAT32
from client.training.requests import Arithmetic, EvaluateRequest, GradientRequest, TrainRequest
from client.training.sgd import SGD
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.measured import Evaluation
from fedappeal.core.policy import Outlook, Past, Situation
from fedappeal.core.requirement import LOOKS, Requirement
from fedappeal.core.store import Store
from fedappeal.core.training_settings import LocalTrainingSettings
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, content_hash
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks.examples import OneClientsData
from fedappeal.tasks.held_out import FEWEST
from fedappeal.tasks.share import ALL
from fedappeal.trained.card import ModelCard

log = logging.getLogger("fedappeal.client")

ADAPTATION = "adaptation"
"""Purpose of the local training after which a client would use a model."""


class Participant:
    """One client of one run.

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
        data: OneClientsData | None = None,
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
        self._owes: tuple[int, str] | None = None

    @property
    def trainable(self) -> list[str]:
        """Names of the trainable parameters that travel, in the model's order."""
        shared = set(self.parts.shared)
        return [name for name, p in self.model.named_parameters() if p.requires_grad and name in shared]

    # -- what travels, and what stays ----------------------------------------------------------------

    def complete(self, shared: Arrays, run_key: str, before: int = 0) -> Arrays:
        """Return the arrays that were sent, and this client's own where some do not travel.

        Args:
            shared: what was sent.
            run_key: which run.
            before: the client's own are those from before this round; 0: as they were at the start.
        """
        if not self.parts.personal:
            return shared
        own = self.memory(run_key).personal(before)
        return {**(own or arrays_of(self._initial, self.parts.personal)), **shared}

    def keep_personal(self, arrays: Arrays, run_key: str, server_round: int) -> None:
        """Remember what of a trained model stays with this client."""
        if self.parts.personal:
            self.memory(run_key).keep_personal(server_round, {name: arrays[name] for name in self.parts.personal})
            self.judged = JudgedModel("", 0, {})

    def pack(self, arrays: Arrays) -> ArrayRecord:
        """Return what travels of a model, packed."""
        return self.layout.pack({name: arrays[name] for name in self.layout.names})

    # -- requirement ---------------------------------------------------------------------------------

    def begin_run(self, run_key: str, initial: Arrays) -> Requirement:
        """Make the requirement ready for a run that starts from the model ``initial`` (w_0).

        Raises:
            LimitReached: where the owner's limits have no room for the run.
        """
        # Of simulated clients all begin with the same w_0; a client of its own need not hold it for longer.
        if self.store.durable:
            packed = self.pack(initial)
            initial_hash = content_hash(packed)
        else:
            packed, initial_hash = self.equipment.packed(initial)
        if self.guard is not None:
            self.guard.make_room(self.store, run_key, packed)
            self.guard.begin_run(run_key, packed)
        if self.store.durable:
            self._say_how_it_judges()
        key = self.equipment.requirement_key(self.data, initial_hash, self.client_id)
        warm_up = _WarmUp(self, initial)
        requirement = stored_requirement(self.store, key, lambda: made(self._required, warm_up))
        self.memory(run_key).requirement = key
        return requirement

    def _say_how_it_judges(self) -> None:
        """Tell the owner what is not as the run, or an earlier setting, lets expect."""
        if self.config.holds_out and self.judged_split == keys.TRAIN_SPLIT:
            count = self.data.counts[0]
            why = f"are fewer than {FEWEST}" if count < FEWEST else "have too many equal inputs"
            log.info(
                "%d training examples %s: this client holds none out, and judges by its training loss", count, why
            )
        elif self.config.holds_out and self.node.fixed_requirement is not None:
            log.warning(
                "fixed-requirement = %g is compared with the loss on held-out data in this run, not with the "
                "training loss (judge-on = held-out)",
                self.node.fixed_requirement,
            )

    def requirement(self, run_key: str) -> Requirement:
        """Return this run's requirement; without a roll call, from the task's initial model."""
        if self.node.fixed_requirement is not None:  # at once, where the owner has set it since the roll call
            return Requirement(self.node.fixed_requirement)
        key = self.memory(run_key).requirement
        if key and (stored := read_requirement(self.store, key)) is not None:
            return stored
        if self.config.initial_model:
            # The run has a w_0 of its own, from which the requirement follows: only a roll call brings it.
            raise ConfigError(f"this client has forgotten its requirement for run {run_key}: start it again")
        return self.begin_run(run_key, arrays_of(self._initial, (*self.parts.shared, *self.parts.personal)))

    # -- one round -----------------------------------------------------------------------------------

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

    def use_of(self, algorithm: ClientSide) -> Adaptation | None:
        """Return the local training after which this client would use a model that it is sent.

        The papers' clients judge the model as it is sent.
        """
        if not self.config.holds_out:
            return None
        steps = self.config.adaptation_steps
        plain: tuple[LocalRule, Mapping[str, Scalar]] | None = (SGD(), {"local-steps": steps}) if steps else None
        if (adapting := algorithm.use() or plain) is None:
            return None
        rule, settings = adapting
        return Adaptation.of(rule, self.plain_training(settings), ADAPTATION)

    def judge(
        self,
        arrays: Arrays,
        model: str,
        split: str,
        tuning_steps: int = 0,
        adaptation: Adaptation | None = None,
        server_round: int = 0,
        precision: str = "",
    ) -> Evaluation:
        """Evaluate a model on this client's data, after local training where asked.

        Args:
            arrays: the model.
            model: its content hash; what was measured of the latest model is remembered.
            split: ``train``, ``held-out`` or ``test``.
            tuning_steps: steps of the run's SGD before the measurement.
            adaptation: other local training before it, in place of these steps.
            server_round: whose noise it is, where ``loss-mode = training`` measures with dropout on.
            precision: of the forward passes; empty: this client's.
        """
        if adaptation is None and tuning_steps:
            adaptation = Adaptation.of(SGD(), self.plain_training({"local-steps": tuning_steps}), "tuning")
        if (latest := (model, server_round if self.config.loss_mode == "training" else 0)) != self.judged[:2]:
            self.judged = JudgedModel(*latest, {})
        precision = precision or self.precision
        how = () if precision == FLOAT32 else (precision,)
        key = " ".join(map(str, (split, *how, *(() if adaptation is None else (adaptation,)))))
        if key not in (known := self.judged.evaluations):
            shared = "" if self.parts.personal else model
            splits = {split: key}
            if adaptation is not None:
                arrays, shared = self.adapted(arrays, adaptation), ""
                if adaptation.purpose == ADAPTATION:  # what is asked next of the same model; it is trained once
                    splits |= {also: key.replace(split, also, 1) for also in (keys.TEST_SPLIT, self.judged_split)}
            for also, name in splits.items():
                known[name] = self.measured(arrays, also, shared, server_round, precision=precision)
        return known[key]

    def plain_training(self, told: Mapping[str, Scalar]) -> LocalTrainingSettings:
        """Return settings of plain steps: those given, and the run's, without momentum and weight decay."""
        return LocalTrainingSettings.of(told, {"momentum": 0.0, "weight-decay": 0.0}, self.config.as_config())

    def priority(self, granted: bool | None = None) -> bool:
        """Whether this client has priority: as the server grants it, else as it asks."""
        if granted is not None:
            return granted
        return self.node.priority or self.strategy.asks_priority(self.node.partition_id, self.config.clients)

    def decide(
        self,
        server_round: int,
        evaluation: Evaluation,
        requirement: Requirement,
        run_key: str,
        *,
        mandatory: bool,
        told: Mapping[str, Scalar],
        priority: bool,
        outlook: Outlook | None = None,
        judged: Evaluation | None = None,
        model: str = "",
    ) -> Decision:
        """Decide by this client's policy; remember what it costs, and the decision where the policy reads its past.

        A round that it joins on request although the model does not meet its requirement is paid for by goodwill.

        Args:
            server_round: counted from 1.
            evaluation: of the model that was sent, on the training data.
            requirement: what this client requires.
            run_key: which run.
            mandatory: whether the server asks clients not to opt out.
            told: what the server told about its strategy, by key.
            priority: whether this client is served with priority.
            outlook: what a policy that looks ahead may measure.
            judged: of the model on what the client judges by; None: ``evaluation``.
            model: content hash of the model that was sent.
        """
        judged = evaluation if judged is None else judged
        memory, goodwill = self.memory(run_key), self.node.goodwill_in(self.config.goodwill)
        mandatory = mandatory and memory.accepts(server_round, model, goodwill)
        met = requirement.met(judged)
        past = memory.past(server_round) if self.policy.needs_history else ()
        situation = Situation(
            server_round=server_round,
            evaluation=evaluation,
            requirement=requirement.rho,
            met=met,
            mandatory=mandatory,
            priority=priority,
            told=told,
            history=past,
            advantage=requirement.advantage(judged),
            outlook=outlook,
            judged=judged,
        )
        decision = self.decision(situation, requirement)
        asked = mandatory and not met and self.policy.mandatory  # no other policy joins for being asked to
        self._owes = (server_round, model) if asked and goodwill > 0 and decision is Decision.JOINED else None
        if self.policy.needs_history:
            held_out = outlook.held_out().loss if outlook is not None and self.policy.looks_ahead else math.nan
            wishes = self.policy.wishes(situation)
            now = Past(server_round, decision, evaluation.loss, held_out, wishes, situation.mandatory)
            memory.keep_past((*past, now))
        return decision

    def pay(self, run_key: str) -> None:
        """Write down the goodwill that the latest decision costs; nothing is trained before."""
        if self._owes is not None:
            self.memory(run_key).pay(*self._owes)
            self._owes = None

    @property
    def gives_goodwill(self) -> bool:
        """Whether this client joins a limited number of rounds on request."""
        return self.policy.mandatory and self.node.goodwill_in(self.config.goodwill) > 0

    def goodwill(self, run_key: str) -> tuple[int, int] | None:
        """Return the rounds of a run joined on request, and how many this client gives; None: no number."""
        if not self.gives_goodwill:
            return None
        return self.memory(run_key).goodwill_spent, self.node.goodwill_in(self.config.goodwill)

    def available(self, server_round: int) -> bool:
        """Whether this client answers a round, or declines it without looking at the model."""
        return self.policy.available(self.config.seed, self.client_id, server_round)

    def decision(self, situation: Situation, requirement: Requirement) -> Decision:
        """Return what this client's policy decides.

        Args:
            situation: what the policy reads.
            requirement: what this client requires.

        Raises:
            ConfigError: the policy returned something else.
        """
        decision = self.policy.decide(situation)
        if not isinstance(decision, Decision):
            name = type(self.policy).__name__
            raise ConfigError(f"policy {name} returned {decision!r}: Decision.JOINED, SAT_OUT or LEFT is allowed")
        return decision

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

    # -- memory --------------------------------------------------------------------------------------

    def memory(self, run_key: str) -> RunMemory:
        """Return what this client remembers of a run."""
        return RunMemory(self.store, run_key)

    def keep_preferred(
        self,
        arrays: Arrays,
        requirement: Requirement,
        on_test: Evaluation,
        run_key: str,
        server_round: int,
        use: Adaptation | None = None,
    ) -> str:
        """Keep the preferred model with its card; return which one it is (MaxFL, section 5).

        The global model is kept as the client uses it: after the steps of ``use``, by which it was measured.
        """
        met, metric = requirement.met(on_test), self.task.metric.name
        which = "global" if met or not requirement.solo else "solo"
        if which == "global" and use is not None:
            arrays = self.adapted(arrays, use)
        kept, figures = arrays, {metric: on_test.score, "loss": on_test.loss, **on_test.others}
        if which == "solo":
            kept, figures = requirement.solo, {metric: requirement.solo_score}
        told = {"which": which, "figures": figures, "measured_on": "test data of this client", "requirement_met": met}
        told |= {"shared": tuple(sorted(kept)) if self.parts.fixed else ALL}
        card = ModelCard.of(self.task, self.config, round=server_round, run_key=run_key, **told)
        preferred.keep(self.store, kept, card)
        return which

    def preferred_score(self, evaluation: Evaluation, requirement: Requirement) -> float | None:
        """Test score of the preferred model; None where the client has no solo model."""
        if not requirement.solo:
            return None
        return evaluation.score if requirement.met(evaluation) else requirement.solo_score


class _WarmUp:
    """What a requirement asks of a client before the first round."""

    def __init__(self, participant: Participant, initial: Arrays) -> None:
        self._participant = participant
        self._initial = initial

    def train(self, steps: int, learning_rate: float) -> Arrays:
        """See `client.requirement.WarmUp`."""
        asked = {"learning-rate": learning_rate, "local-steps": steps}
        training = LocalTrainingSettings.of(asked, self._participant.config.as_config())
        return self._participant.trained(self._initial, SGD(), training, 0, "warm-up")

    def path(self, steps: int, learning_rate: float) -> Iterator[Arrays]:
        """See `client.requirement.WarmUp`."""
        client, arrays = self._participant, self._initial
        asked = {"learning-rate": learning_rate, "local-steps": steps}
        training = LocalTrainingSettings.of(asked, client.config.as_config())
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
        """See `client.requirement.WarmUp`."""
        return self._participant.measured(arrays, keys.TRAIN_SPLIT, purpose="requirement").loss

    @property
    def holds_out(self) -> bool:
        """See `client.requirement.WarmUp`."""
        return self._participant.judged_split == keys.HELD_OUT_SPLIT

    def judged_loss(self, arrays: Arrays) -> float:
        """See `client.requirement.WarmUp`."""
        return self._participant.measured(arrays, self._participant.judged_split, purpose="requirement").loss

    def test_score(self, arrays: Arrays) -> float:
        """See `client.requirement.WarmUp`."""
        return self._participant.measured(arrays, keys.TEST_SPLIT).score
