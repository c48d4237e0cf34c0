"""One client of one run: its data, its requirement, its decision, its training and its evaluation.

Everything here is the client's own side of a message; what a message looks like is in `client.app`.
"""

import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.arithmetic import Arithmetic, Differentiating, Evaluation, Measuring, Training
from client.loaded import data_of, initial_of, own_data_of, pick_device, task_of, workbench
from client.models import arrays_of
from client.participation import POLICIES, Situation
from client.personalised import Adaptation
from client.requirement import (
    Requirement,
    read_requirement,
    requirement_key,
    requirement_settings,
    stored_requirement,
)
from client.rules import RULES, Noise, draws_a_step
from client.settings import NodeSettings
from client.state import Record, Store
from client.work import LocalWork
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from fedappeal.protocol.draws import batch_indices
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, Layout, content_hash
from fedappeal.tasks.task import ClientData


def client_identity(node: NodeSettings, store: Store) -> str:
    """Return the client-id: the owner's setting (or key), else the durable state's id, made on first use."""
    if node.client_id:
        return node.client_id
    if (record := store.read("identity")) is not None:
        return str(record.values["client-id"])
    fresh = f"client-{node.partition_id:04d}" if node.partition_id >= 0 else f"client-{uuid.uuid4().hex[:12]}"
    store.write("identity", Record({"client-id": fresh}))
    return fresh


class Participant:
    """One client of one run.

    Attributes:
        store: where this client remembers; a simulator hands in another one with each message.
        client_id: stable id.
        layout: layout of the task's model.
    """

    def __init__(
        self,
        config: RunConfig,
        node: NodeSettings,
        store: Store,
        arithmetic: Arithmetic | None = None,
        data: ClientData | None = None,
    ) -> None:
        """Load the client's data, unless they are given.

        Args:
            config: the run's settings.
            node: the owner's settings.
            store: where the client remembers.
            arithmetic: trains and measures; None: one client at a time.
            data: the client's data on its device; None: its own, or those of its partition.

        Raises:
            ConfigError: where the owner's settings do not fit the run's.
        """
        if ":" in config.task and node.task not in ("any", config.task):
            # A task is code: one that a message names is imported only where the owner has named it too.
            raise ConfigError(
                f"task = '{config.task}' is not allowed: this client's owner has not named it (--task '{node.task}')"
            )
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
        self._required = requirement_settings(config, node.fixed_requirement)
        self.store = store
        self.client_id = client_identity(node, store)
        self.device = pick_device(node.device)
        settings = config.task_settings()
        self.task = task_of(settings, node.data_dir)
        self.data = data or (
            own_data_of(settings, node.data_dir, node.data, self.client_id, self.device)
            if node.data
            else data_of(settings, node.data_dir, node.partition_id, self.device)
        )
        self._arithmetic = arithmetic or Arithmetic()
        self._initial = initial_of(settings, node.data_dir, config.seed)
        self._model = workbench(settings, node.data_dir, config.seed, self.device)
        self.layout = Layout.of(arrays_of(self._initial))
        self._evaluations: dict[tuple[str, Adaptation | None], Evaluation] = {}
        self._judged = ("", 0)

    @property
    def trainable(self) -> list[str]:
        """Names of the trainable parameters, in the order in which a local rule takes its correction."""
        return [name for name, parameter in self._model.named_parameters() if parameter.requires_grad]

    @property
    def model(self) -> nn.Module:
        """A model of the task on this client's device, for its structure: its values do not last."""
        return self._model

    # -- requirement ---------------------------------------------------------------------------------

    @cached_property
    def data_fingerprint(self) -> str:
        """Fingerprint of this client's own data; it never leaves the client."""
        return self.data.fingerprint

    def begin_run(self, run_key: str, initial: Arrays) -> Requirement:
        """Make the requirement ready for a run that starts from the model ``initial`` (w_0)."""
        key = requirement_key(
            self._required,
            self.task.fingerprint,
            self.data_fingerprint,
            self.layout.hash,
            content_hash(self.layout.pack(initial)),
            self.client_id,
        )
        requirement = stored_requirement(self.store, key, lambda: self._warm_up(initial))
        self._remember(run_key, **{"requirement": key})
        return requirement

    def requirement(self, run_key: str) -> Requirement:
        """Return this run's requirement; where there was no roll call, w_0 is the task's initial model."""
        if self.node.fixed_requirement is not None:  # at once, where the owner has set it since the roll call
            return Requirement.fixed(self.node.fixed_requirement)
        key = str(self._memory(run_key)["requirement"])
        if key and (stored := read_requirement(self.store, key)) is not None:
            return stored
        if self.config.initial_model:
            # The run has a w_0 of its own, from which the requirement follows: only a roll call brings it.
            raise ConfigError(f"this client has forgotten its requirement for run {run_key}: start it again")
        return self.begin_run(run_key, arrays_of(self._initial))

    def _warm_up(self, initial: Arrays) -> Requirement:
        if self._required.requirement == "fixed":
            return Requirement.fixed(self._required.fixed_requirement)
        work = LocalWork.of(
            {"learning-rate": self.config.warmup_learning_rate, "local-steps": self.config.warmup_steps},
            self.config.as_config(),
        )
        solo = self._trained(initial, work, server_round=0, rule="sgd", purpose="warm-up")
        loss = self._measured(solo, keys.TRAIN_SPLIT, purpose="requirement").loss
        return Requirement(loss, dict(solo), self._measured(solo, keys.TEST_SPLIT).accuracy)

    # -- one round -----------------------------------------------------------------------------------

    def judge(
        self,
        arrays: Arrays,
        model: str,
        split: str,
        tuning_steps: int = 0,
        adaptation: Adaptation | None = None,
        server_round: int = 0,
    ) -> Evaluation:
        """Evaluate a model on this client's data, after training it on them where that is asked for.

        Args:
            arrays: the model.
            model: its content hash; what was measured of the latest model is remembered.
            split: ``train`` or ``test``.
            tuning_steps: steps of the run's SGD before the measurement.
            adaptation: any other local training before it.
            server_round: whose noise it is, where ``loss-mode = training`` measures with dropout on.
        """
        if adaptation is None and tuning_steps:
            plain = {"local-steps": tuning_steps, "momentum": 0.0, "weight-decay": 0.0}
            adaptation = Adaptation("sgd", LocalWork.of(plain, self.config.as_config()), "tuning")
        if (judged := (model, server_round if self.config.loss_mode == "training" else 0)) != self._judged:
            self._judged, self._evaluations = judged, {}
        key = (split, adaptation)
        if key not in self._evaluations:
            shared = model
            if adaptation is not None:
                rule, work, purpose = adaptation
                arrays, shared = self._trained(arrays, work, server_round=0, rule=rule, purpose=purpose), ""
            self._evaluations[key] = self._measured(arrays, split, shared, server_round)
        return self._evaluations[key]

    def priority(self, granted: Scalar | None) -> bool:
        """Whether this client is served with priority: as the server says, else as it asks itself."""
        if granted is not None:
            return bool(granted)
        return self.node.priority or 0 <= self.node.partition_id < self.config.resolved_priority_clients

    @property
    def decides_by_loss(self) -> bool:
        """Whether this client looks at the model before it decides."""
        return self.config.resolved_participation != "always"

    @property
    def reports_loss(self) -> bool:
        """Whether replies may carry losses: by the run's settings and by the owner's."""
        return self.config.report_loss and self.node.report_loss

    def decide(self, measured: Evaluation, requirement: Requirement, told: Mapping[str, object]) -> Decision:
        """Decide by the run's participation policy and this client's own settings.

        Args:
            measured: the model that was sent, on the training data.
            requirement: what this client requires.
            told: the config of the TRAIN message.
        """
        matched = keys.GLOBAL_LOSS in told
        situation = Situation(
            loss=measured.loss,
            requirement=requirement.rho,
            mandatory=bool(told.get(keys.MANDATORY, 0)) and not self.node.refuse_mandatory,
            priority=self.priority(told.get(keys.PRIORITY)),  # type: ignore[arg-type]
            measure=measured.measure(str(told.get(keys.MATCH_ON, "loss"))),
            global_loss=float(told[keys.GLOBAL_LOSS]) if matched else None,  # type: ignore[arg-type]
            epsilon=float(told[keys.EPSILON]) if matched else 0.0,  # type: ignore[arg-type]
            precision=self.config.precision,
        )
        return POLICIES[self.config.resolved_participation](situation)

    def train(
        self, arrays: Arrays, server_round: int, rule: str, work: LocalWork, correction: Sequence[torch.Tensor] = ()
    ) -> Arrays:
        """Train the model that was sent on this client's own data, and return the local model.

        Raises:
            ValueError: for a local rule that this version does not have.
        """
        if rule not in RULES:
            raise ValueError(f"local-rule = '{rule}' is not known to this client; it has {', '.join(RULES)}")
        return self._trained(
            arrays, work, server_round=server_round, rule=rule, purpose="batches", correction=correction
        )

    def _trained(
        self,
        arrays: Arrays,
        work: LocalWork,
        *,
        server_round: int,
        rule: str,
        purpose: str,
        correction: Sequence[torch.Tensor] = (),
    ) -> Arrays:
        data, seed = self.data.train, self.config.seed
        draws = work.steps(len(data)) * draws_a_step(rule, work)
        return self._arithmetic.train(
            Training(
                task=self.task,
                model=self._model,
                place=self.node.partition_id,
                data=data,
                arrays=arrays,
                rule=rule,
                work=work,
                batches=batch_indices(seed, self.client_id, server_round, len(data), draws, work.batch_size, purpose),
                correction=correction,
                seed=seed,
                client_id=self.client_id,
                server_round=server_round,
                purpose=purpose,
            )
        )

    def gradient(self, arrays: Arrays, batch: NDArray[np.int64] | None) -> Arrays:
        """Return the gradient of the mean training loss of a model, in evaluation mode; None: of all examples."""
        place, data = self.node.partition_id, self.data.train
        return self._arithmetic.gradient(Differentiating(self.task, self._model, place, data, arrays, batch))

    def _measured(
        self, arrays: Arrays, split: str, shared: str = "", server_round: int = 0, purpose: str = "loss"
    ) -> Evaluation:
        data = self.data.train if split == keys.TRAIN_SPLIT else self.data.test
        place, noise = self.node.partition_id, None
        if self.config.loss_mode == "training" and split == keys.TRAIN_SPLIT:
            # With noise of its own a client's measurement is like no other's, though the model is the same.
            shared, noise = "", Noise(self.config.seed, f"{self.client_id}/{purpose}", server_round)
        return self._arithmetic.evaluate(Measuring(self.task, self._model, place, data, split, arrays, shared, noise))

    # -- memory of the run -----------------------------------------------------------------------------

    def _memory(self, run_key: str) -> dict[str, Scalar]:
        record = self.store.read(f"run-{run_key}")
        return {"requirement": "", "left-round": 0, **(record.values if record else {})}

    def _remember(self, run_key: str, **values: Scalar) -> None:
        memory = self._memory(run_key)
        if (changed := memory | values) != memory:
            self.store.write(f"run-{run_key}", Record(changed))

    def has_left(self, run_key: str, server_round: int) -> bool:
        """Whether this client left for good before the given round of the run."""
        return 0 < int(self._memory(run_key)["left-round"]) < server_round

    def leave(self, run_key: str, server_round: int) -> None:
        """Remember that this client left for good in the given round."""
        self._remember(run_key, **{"left-round": server_round})

    def keep_preferred(self, arrays: Arrays, requirement: Requirement, appealed: bool, run_key: str) -> str:
        """Keep the model this client prefers (MaxFL section 5) as ``preferred``; return which one that is."""
        which = "global" if appealed or not requirement.solo else "solo"
        kept = arrays if which == "global" else requirement.solo
        self.store.write("preferred", Record({"which": which, "run-key": run_key}, kept))
        return which

    def preferred_accuracy(self, evaluation: Evaluation, requirement: Requirement) -> float | None:
        """Test accuracy of the preferred model; None where the client has no solo model."""
        if not requirement.solo:
            return None
        return evaluation.accuracy if evaluation.loss < requirement.rho else requirement.solo_accuracy
