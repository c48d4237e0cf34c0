"""One client of one run: its data, its requirement, its decision, its training and its evaluation.

Everything here is the client's own side of a message; what a message looks like is in `client.app`.
"""

import copy
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from client.models import arrays_of, evaluate, load_arrays
from client.participation import POLICIES, Situation
from client.requirement import Requirement, read_requirement, requirement_key, stored_requirement
from client.rules import RULES, draws_a_step, seeded_noise
from client.settings import NodeSettings
from client.state import Record, Store
from client.work import LocalWork
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar, TaskSettings
from fedappeal.protocol.draws import batch_indices
from fedappeal.protocol.keys import TRAIN_SPLIT, Decision
from fedappeal.protocol.packing import Layout, content_hash
from fedappeal.tasks import load_task
from fedappeal.tasks.task import ClientData, Split, Task

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Evaluation:
    """What a client measured of one model.

    Attributes:
        loss: mean loss on the split.
        accuracy: on the split, in [0, 1].
    """

    loss: float
    accuracy: float

    def measure(self, on: str) -> float:
        """Return what FedALIGN compares: the loss, or ``1 - accuracy`` for ``error``."""
        return 1.0 - self.accuracy if on == "error" else self.loss


def client_identity(node: NodeSettings, store: Store) -> str:
    """Return the client-id: the owner's setting (or key), else the durable state's id, made on first use."""
    if node.client_id:
        return node.client_id
    if (record := store.read("identity")) is not None:
        return str(record.values["client-id"])
    fresh = f"client-{node.partition_id:04d}" if node.partition_id >= 0 else f"client-{uuid.uuid4().hex[:12]}"
    store.write("identity", Record({"client-id": fresh}))
    return fresh


def pick_device(wanted: str) -> torch.device:
    """Return the device to train on; ``auto`` takes CUDA where it is available.

    Raises:
        ConfigError: if the device was named and is not there.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }[wanted.partition(":")[0]]
    if not available:
        raise ConfigError(f"device = '{wanted}' is not allowed: PyTorch finds no such device here (auto, cpu)")
    return torch.device(wanted)


@lru_cache(maxsize=4)
def task_of(settings: TaskSettings, data_dir: str) -> Task:
    """Return the task, loaded once a process."""
    return load_task(settings, Path(data_dir) if data_dir else None)


@lru_cache(maxsize=256)
def data_of(settings: TaskSettings, data_dir: str, partition_id: int, device: torch.device) -> ClientData:
    """Return one client's data on its device, loaded once a process."""
    data = task_of(settings, data_dir).load(partition_id)
    return ClientData(*(Split(s.x.to(device), s.y.to(device)) for s in (data.train, data.test)))


class Participant:
    """One client of one run.

    Attributes:
        store: where this client remembers; a simulator hands in another one with each message.
        client_id: stable id.
        layout: layout of the task's model.
    """

    def __init__(self, config: RunConfig, node: NodeSettings, store: Store) -> None:
        """Load the client's data and build its model.

        Raises:
            ConfigError: where the owner's settings do not fit the run's.
        """
        if ":" in config.task and node.task not in ("any", config.task):
            # A task is code: one that a message names is imported only where the owner has named it too.
            raise ConfigError(
                f"task = '{config.task}' is not allowed: this client's owner has not named it (--task '{node.task}')"
            )
        total = config.clients + config.unseen_clients
        if not 0 <= node.partition_id < total:
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
        self.device = pick_device(node.device)
        settings = config.task_settings()
        self.task = task_of(settings, node.data_dir)
        self.data = data_of(settings, node.data_dir, node.partition_id, self.device)
        self._initial = self.task.initial_model(config.seed)
        self._model = copy.deepcopy(self._initial).to(self.device)
        self.layout = Layout.of(arrays_of(self._initial))
        self._evaluations: dict[tuple[str, str, int], Evaluation] = {}
        self._judged = ""

    # -- requirement ---------------------------------------------------------------------------------

    @cached_property
    def data_fingerprint(self) -> str:
        """Fingerprint of this client's own data; it never leaves the client."""
        return self.data.fingerprint

    def begin_run(self, run_key: str, initial: Arrays) -> Requirement:
        """Make the requirement ready for a run that starts from the model ``initial`` (w_0)."""
        key = requirement_key(
            self.config,
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
        key = str(self._memory(run_key)["requirement"])
        if key and (stored := read_requirement(self.store, key)) is not None:
            return stored
        return self.begin_run(run_key, arrays_of(self._initial))

    def _warm_up(self, initial: Arrays) -> Requirement:
        if self.config.requirement == "fixed":
            return Requirement(self.config.fixed_requirement, {}, float("nan"))
        work = LocalWork.of(
            {"learning-rate": self.config.warmup_learning_rate, "local-steps": self.config.warmup_steps},
            self.config.as_config(),
        )
        load_arrays(self._model, initial)
        self._train(work, server_round=0, rule="sgd", purpose="warm-up")
        loss, _ = evaluate(self.task, self._model, self.data.train)
        _, accuracy = evaluate(self.task, self._model, self.data.test)
        return Requirement(loss, arrays_of(self._model), accuracy)

    # -- one round -----------------------------------------------------------------------------------

    def judge(self, arrays: Arrays, model: str, split: str, tuning_steps: int = 0) -> Evaluation:
        """Evaluate a model on this client's data, after fine-tuning it where that is asked for.

        Args:
            arrays: the model.
            model: its content hash; what was measured of the latest model is remembered.
            split: ``train`` or ``test``.
            tuning_steps: local steps before the measurement.
        """
        if model != self._judged:
            self._judged, self._evaluations = model, {}
        key = (model, split, tuning_steps)
        if key not in self._evaluations:
            load_arrays(self._model, arrays)
            if tuning_steps:
                work = LocalWork.of(
                    {"local-steps": tuning_steps, "momentum": 0.0, "weight-decay": 0.0},
                    self.config.as_config(),
                )
                self._train(work, server_round=0, rule="sgd", purpose="tuning")
            data = self.data.train if split == TRAIN_SPLIT else self.data.test
            self._evaluations[key] = Evaluation(*evaluate(self.task, self._model, data))
        return self._evaluations[key]

    def priority(self, granted: Scalar | None) -> bool:
        """Whether this client is served with priority: as the server says, else as it asks itself."""
        if granted is not None:
            return bool(granted)
        return self.node.priority or 0 <= self.node.partition_id < self.config.resolved_priority_clients

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
        most = math.inf
        if keys.GLOBAL_LOSS in told:
            most = float(told[keys.GLOBAL_LOSS]) + float(told[keys.EPSILON])  # type: ignore[arg-type]
        situation = Situation(
            loss=measured.loss,
            requirement=requirement.rho,
            mandatory=bool(told.get(keys.MANDATORY, 0)) and not self.node.refuse_mandatory,
            priority=self.priority(told.get(keys.PRIORITY)),  # type: ignore[arg-type]
            measure=measured.measure(str(told.get(keys.MATCH_ON, "loss"))),
            most=most,
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
        load_arrays(self._model, arrays)
        self._train(work, server_round=server_round, rule=rule, purpose="batches", correction=correction)
        return arrays_of(self._model)

    def _train(
        self,
        work: LocalWork,
        *,
        server_round: int,
        rule: str,
        purpose: str,
        correction: Sequence[torch.Tensor] = (),
    ) -> None:
        data, seed = self.data.train, self.config.seed
        draws = work.steps(len(data)) * draws_a_step(rule, work)
        batches = batch_indices(seed, self.client_id, server_round, len(data), draws, work.batch_size, purpose)
        self._model.train()
        with seeded_noise(seed, f"{self.client_id}/{purpose}", server_round, self.device):
            RULES[rule](self._model, self._loss, data.x, data.y, batches, work, correction)

    def _loss(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.task.loss(logits, y)

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
