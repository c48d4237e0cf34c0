"""The run configuration: one validated set of settings for every way of running, and what other modules need of it.

The keys are those of ``[tool.flwr.app.config]`` in pyproject.toml, in kebab case, and the command line's options.
Flower's run configuration holds scalars only, so "not set" is written as 0, -1 or "" where a key says so. Settings of
a plug-in (a strategy, a policy, ...) stand under its name: ``maxfl.server-lr``. They are carried here as they were
given; `fedappeal.core.plugins` checks them where the plug-in is known.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedappeal.settings import rounds, training
from fedappeal.settings.model import (
    ConfigError,
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    PositiveShare,
    Scalar,
    Settings,
    Share,
    WithPlugins,
    plugin_settings,
    scalar,
    section,
    setting,
)
from fedappeal.settings.rounds import BEST, CROSS_FITTED, default_mandatory_rounds, most_asked_rounds
from fedappeal.settings.training import LocalTrainingSettings


class TaskSettings(WithPlugins):
    """The task, and its data's partition over the clients.

    A partition is a pure function of these.
    """

    task: str = Field("digits", min_length=1)
    """task by name, or package.module:name of your own"""
    model: str = Field("auto", min_length=1)
    """auto: the task's default; mlp, logistic, cnn, torchvision:NAME, transformers:NAME (with random weights), or
    package.module:Name of your own"""
    share: str = Field("auto", min_length=1)
    """what of the model travels; the rest stays with the client: all, trainable, or names as patterns (body.*, or
    !head.* for all but these); none, the control of a simulation; auto: as the task says, usually all"""
    clients: Count = 10
    """number of clients that train (seen)"""
    unseen_clients: CountOrZero = 0
    """further clients that only evaluate (unseen)"""
    partition: Literal["iid", "dirichlet", "shards", "clusters", "dirichlet-clusters", "natural", "auto"] = "auto"
    """how the data is spread over clients; auto: natural where the task is (users), else dirichlet"""
    dirichlet_alpha: Positive = 0.5
    """concentration; small is more skewed"""
    shards_per_client: Count = 2
    """for partition = shards"""
    clusters: Count = 5
    """for partition = clusters: clusters of labels, MaxFL appendix D.1; for dirichlet-clusters: of clients alike, a
    Dirichlet draw of labels each"""
    cluster_alpha: NonNegative = 0.0
    """for partition = clusters: Dirichlet inside a cluster; 0: even"""
    train_share: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """train share of a client's data"""
    min_examples: Count = 10
    """fewest examples a client may hold"""
    max_train_examples: CountOrZero = 0
    """most examples a client trains on, the others are left out; 0: all"""
    scale: Literal["auto", "none", "standard"] = "auto"
    """columns of own tables: standard: each client's by mean and standard deviation of its training data; auto: so,
    unless the task is built in or scales itself; none: as they are"""
    flip_share: Share = 0.0
    """share of clients whose labels are flipped, y -> C-1-y"""
    flip_on: Literal["train", "both"] = "both"
    """flip train labels only, or test labels too"""
    seed: CountOrZero = 0
    """seed of every draw of the run"""
    data_seed: Annotated[int, Field(ge=-1)] = -1
    """seed of the draws of clients' data: who has which examples, which labels flip; -1: seed"""

    @property
    def resolved_data_seed(self) -> int:
        """Seed of the draws of clients' data: the setting, or the run's seed."""
        return self.seed if self.data_seed < 0 else self.data_seed


class AttackSettings(Settings):
    """The share of attackers, and their attack."""

    byzantine_share: Share = 0.0
    """experiments: share of clients that attack"""
    byzantine_attack: Literal["inflate", "claim", "zero", "huge", "flip"] = "inflate"
    """experiments: the weight is computed from an inflated loss, or made up; or the model is replaced (zeros, 1e30,
    the update times byzantine-scale) and every claim is the largest"""
    byzantine_inflation: Positive = 10.0
    """experiments: factor on an attacker's loss"""
    byzantine_claim: float = Field(0.25, allow_inf_nan=False)
    """experiments: the weight it makes up"""
    byzantine_scale: float = Field(-20.0, allow_inf_nan=False)
    """experiments: factor on the update, for byzantine-attack = flip"""
    byzantine_noise: NonNegative = 1.0
    """experiments: noise on an attacker's model, in standard deviations of its update"""


class FileSettings(Settings):
    """The files that a run starts from and writes."""

    initial_model: str = ""
    """safetensors file to start from; empty: the task's initial model"""
    out: str = ""
    """folder of the run; empty: runs/DATE-TIME-XXXX-STRATEGY-TASK"""
    resume: bool = setting(False, internal=True)
    """continue the run in `out` from its last finished round"""
    schedule_rounds: CountOrZero = setting(0, internal=True)
    """number of rounds that a continued run began with, for all that follows from it; 0: rounds"""


__all__ = [
    "ConfigError",
    "Count",
    "CountOrZero",
    "NonNegative",
    "Positive",
    "PositiveShare",
    "RunConfig",
    "Scalar",
    "Settings",
    "Share",
    "TaskSettings",
    "plugin_settings",
    "scalar",
    "section",
]

PAPERS: Mapping[str, Scalar] = MappingProxyType(
    {
        "judge-on": "train",
        "adaptation-steps": 0,
        "goodwill": -1,
        "mandatory-rounds": -1,
        "scale": "none",
        "dropout-noise": "stream",
    }
)
"""How clients judge, join, scale and draw in the papers, and in runs of versions without these settings."""


class RunConfig(
    FileSettings,
    AttackSettings,
    training.UpdateSettings,
    training.LearningRateSchedule,
    LocalTrainingSettings,
    training.InfluenceSettings,
    rounds.JudgingSettings,
    rounds.AskingSettings,
    rounds.ParticipationSettings,
    rounds.EvaluationSettings,
    rounds.RoundSettings,
    rounds.SizeSettings,
    TaskSettings,
):
    """All settings of a run, in groups.

    Pydantic puts the fields of the last group first.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        clients, total, fewest = self.clients, self.clients + self.unseen_clients, self.resolved_min_clients
        mandatory = self.mandatory_rounds if isinstance(self.mandatory_rounds, int) else 0
        for key, fits, allowed in (
            ("clients-per-round", self.clients_per_round <= clients, f"at most clients = {clients} (0: all)"),
            ("min-clients", self.min_clients <= total, f"at most {total} (clients + unseen-clients)"),
            ("max-clients", not 0 < self.max_clients < fewest, f"at least min-clients = {fewest}"),
            ("mandatory-rounds", mandatory <= self.rounds, f"at most rounds = {self.rounds}"),
            ("lr-warmup-rounds", self.lr_warmup_rounds < self.rounds, f"less than rounds = {self.rounds}"),
        ):
            if not fits:
                raise ValueError(f"{key} = {getattr(self, key.replace('-', '_'))} is not allowed: {allowed}")
        if self.local_steps == 0 and self.local_epochs == 0:
            raise ValueError("local-steps = 0 is not allowed where local-epochs = 0: one of them must be positive")
        if self.use == BEST and self.judge_on != CROSS_FITTED:
            raise ValueError(f"use = '{BEST}' is not allowed with judge-on = '{self.judge_on}': {CROSS_FITTED}")
        return self

    def task_settings(self) -> TaskSettings:
        """Return the part of the settings that decides what is learned, on which data."""
        return self.part(TaskSettings)

    @property
    def training(self) -> LocalTrainingSettings:
        """The settings of local training."""
        return self.part(LocalTrainingSettings)

    @property
    def scheduled_rounds(self) -> int:
        """Number of rounds from which schedules and shares follow: that with which the run began."""
        return self.schedule_rounds or self.rounds

    @property
    def resolved_mandatory_rounds(self) -> int:
        """The most mandatory rounds: as set, or max(10, 5 % of the rounds).

        Half of the rounds where they are chosen.
        """
        if not isinstance(self.mandatory_rounds, int):
            return most_asked_rounds(self.scheduled_rounds)
        return default_mandatory_rounds(self.scheduled_rounds) if self.mandatory_rounds < 0 else self.mandatory_rounds

    def check_tuning(self, steps: int, key: str = "tuning-steps") -> None:
        """Refuse tuning steps beside the steps by which clients adapt a model.

        Raises:
            ConfigError: both are set; they are one training, before a client judges.
        """
        if steps and self.holds_out and (self.adaptation_steps or self.use == BEST):
            raise ConfigError(
                f"{key} = {steps} is not allowed with judge-on = '{self.judge_on}' and adaptation-steps = "
                f"{self.adaptation_steps}, which are the steps before a client judges: 0, or judge-on = 'train'"
            )

    @property
    def holds_out(self) -> bool:
        """Whether clients hold a third of their training data out, to judge models by."""
        return self.judge_on != "train"

    @property
    def cross_fits(self) -> bool:
        """Whether clients choose by one half of what they hold out, and judge by the other."""
        return self.judge_on == CROSS_FITTED

    @classmethod
    def parse_recorded(cls, values: Mapping[str, Any], *, ignore_unknown: bool = False) -> Self:
        """Return validated settings from a run's folder or another program.

        What they lack means what it always did.

        Raises:
            ConfigError: as `parse`.
        """
        return cls.parse({**PAPERS, **values}, ignore_unknown=ignore_unknown)

    def continued(self, rounds: int) -> Self:
        """Return the settings of the same run with another total of rounds.

        What follows from the number of rounds stays as the run began.

        Raises:
            ConfigError: for a number that is not allowed.
        """
        changed = {"rounds": rounds, "schedule-rounds": self.scheduled_rounds}
        return type(self).parse({**self.as_config(), **changed})

    @property
    def resolved_clients_per_round(self) -> int:
        """The number of clients that a round asks: the setting, or all."""
        return min(self.clients_per_round or self.clients, self.clients)

    @property
    def resolved_min_clients(self) -> int:
        """Clients to wait for before round 1: the setting, or all."""
        return self.min_clients or self.clients + self.unseen_clients

    @property
    def resolved_max_clients(self) -> int:
        """The most clients of a deployed run: as set, or twice ``clients``."""
        return self.max_clients or 2 * (self.clients + self.unseen_clients)
