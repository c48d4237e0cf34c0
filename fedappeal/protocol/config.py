"""The run configuration: one typed and validated set of settings, shared by every way of starting a run.

The keys are those of ``[tool.flwr.app.config]`` in pyproject.toml, in kebab case, and the command line's options.
Flower's run configuration holds scalars only, so "not set" is written as 0, -1 or "" where a key says so.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedappeal.protocol.rounds import default_mandatory_rounds

Scalar = bool | int | float | str
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


NATURAL = frozenset({"sent140", "synth"})
"""Tasks whose data comes client by client."""


class ConfigError(ValueError):
    """A setting that is not allowed; the message is one line a setting, for a person to read."""


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Settings(BaseModel):
    """Base of all validated settings: kebab-case keys, nothing unknown, errors as one line each."""

    model_config = ConfigDict(
        alias_generator=_kebab, populate_by_name=True, extra="forbid", frozen=True, protected_namespaces=()
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate settings given under their kebab-case keys.

        Raises:
            ConfigError: one line a setting that is wrong: the setting, its value, what is allowed.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError("\n".join(cls._explain(e) for e in error.errors())) from None

    @classmethod
    def _explain(cls, error: Any) -> str:
        key = _kebab(str(error["loc"][0])) if error["loc"] else ""
        value = error.get("input")
        if error["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, cls.keys(), n=1)
            return f"unknown setting '{key}'" + (f"; did you mean '{near[0]}'?" if near else "")
        if error["type"] == "missing":
            return f"{key} is missing"
        reason = error["msg"].removeprefix("Value error, ")
        if not key:
            return str(reason)
        return f"{key} = {value!r} is not allowed: {reason[:1].lower()}{reason[1:]}"

    @classmethod
    def keys(cls) -> list[str]:
        """Return all keys in kebab case."""
        return [_kebab(name) for name in cls.model_fields]

    def as_config(self) -> dict[str, Scalar]:
        """Return all settings as scalars under their kebab-case keys."""
        return self.model_dump(by_alias=True)


class TaskSettings(Settings):
    """What is learned and how its data is spread over the clients. A partition is a pure function of these."""

    task: str = Field("digits", min_length=1, description="task by name, or package.module:name of your own")
    model: Literal["auto", "mlp", "logistic", "cnn"] = Field("auto", description="auto: the task's default")
    clients: Count = Field(10, description="number of clients that train (seen)")
    unseen_clients: CountOrZero = Field(0, description="further clients that only evaluate (unseen)")
    partition: Literal["iid", "dirichlet", "shards", "clusters", "dirichlet-clusters", "natural", "auto"] = Field(
        "auto",
        description="how the data is spread over clients; auto: natural where the task is (users), else dirichlet",
    )
    dirichlet_alpha: Positive = Field(0.5, description="concentration; small is more skewed")
    shards_per_client: Count = Field(2, description="for partition = shards")
    clusters: Count = Field(
        5,
        description="for partition = clusters: clusters of labels, MaxFL appendix D.1; for dirichlet-clusters: of "
        "clients alike, a Dirichlet draw of labels each",
    )
    cluster_alpha: NonNegative = Field(
        0.0, description="for partition = clusters: Dirichlet inside a cluster; 0: even"
    )
    train_share: Annotated[float, Field(gt=0, lt=1)] = Field(0.6, description="train share of a client's data")
    min_examples: Count = Field(10, description="fewest examples a client may hold")
    max_train_examples: CountOrZero = Field(
        0, description="most examples a client trains on, the others are left out; 0: all"
    )
    flip_share: Share = Field(0.0, description="share of clients whose labels are flipped, y -> C-1-y")
    flip_on: Literal["train", "both"] = Field("both", description="flip train labels only, or test labels too")
    synth_alpha: NonNegative = Field(1.0, description="task synth: how much clients' models differ")
    synth_beta: NonNegative = Field(1.0, description="task synth: how much clients' inputs differ")
    synth_examples: CountOrZero = Field(0, description="task synth: examples a client; 0: drawn, 50 or more")
    synth_noisy: CountOrZero = Field(
        0, description="task synth: the last so many seen clients hold the others' kind of data, with noise"
    )
    synth_noise: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.25,
        description="task synth: their mean share of wrong labels and of irrelevant examples, spread from 0 to twice",
    )
    seed: CountOrZero = Field(0, description="seed of every draw of the run")

    @property
    def resolved_partition(self) -> str:
        """How the data is spread: the setting, or by user or device where the task's data comes so."""
        if self.partition != "auto":
            return self.partition
        return "natural" if self.task in NATURAL else "dirichlet"


class RunConfig(TaskSettings):
    """All settings of a run."""

    strategy: str = Field("maxfl", min_length=1, description="server strategy")
    rounds: Count = Field(20, description="number of rounds")
    clients_per_round: CountOrZero = Field(0, description="clients folded a round; 0: all")
    min_available_nodes: CountOrZero = Field(0, description="clients to wait for before round 1; 0: all of them")
    start_timeout: Positive = Field(300.0, description="seconds to wait for them")
    round_timeout: Positive = Field(60.0, description="deadline of one exchange, in seconds")
    evaluate_every: CountOrZero = Field(1, description="evaluate every so many rounds; 0: after the last only")
    evaluate_train: bool = Field(
        True, description="evaluation also asks whether the model appeals by its training loss: one more pass"
    )
    report_train_loss: bool = Field(
        False, description="experiments: evaluation reports the training loss; with MaxFL's weight it tells rho_k"
    )
    measure_leavers: bool = Field(True, description="clients that left still answer evaluation")

    participation: Literal["auto", "always", "appeal", "match", "defect"] = Field(
        "auto", description="how a client decides; auto: FedALIGN's match, ADA-GD's defect, else appeal"
    )
    mandatory_rounds: Annotated[int, Field(ge=-1)] = Field(
        -1, description="rounds in which clients are asked not to opt out; -1: max(10, 5 %% of the rounds)"
    )
    empty_pool: Literal["ask-all", "keep"] = Field(
        "ask-all", description="after a round that nobody joined: the next is mandatory, or nothing changes"
    )
    requirement: Literal["solo", "fixed"] = Field("solo", description="where a client's rho_k comes from")
    fixed_requirement: float = Field(1.0, allow_inf_nan=False, description="rho_k for requirement = fixed")
    warmup_steps: Count = Field(100, description="solo steps behind rho_k")
    warmup_learning_rate: Positive = Field(0.1, description="their learning rate")
    loss_mode: Literal["evaluation", "training"] = Field(
        "evaluation", description="how a client measures F_k and rho_k on its training data; training: dropout is on"
    )

    learning_rate: Positive = Field(0.1, description="local learning rate")
    batch_size: Count = Field(32, description="examples a local step")
    local_steps: CountOrZero = Field(30, description="local steps a round; 0: use local-epochs")
    local_epochs: CountOrZero = Field(0, description="local epochs a round, where local-steps is 0")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="local SGD momentum")
    weight_decay: NonNegative = Field(0.0, description="local SGD weight decay")

    local_rule: Literal["auto", "sgd", "prox"] = Field(
        "auto", description="local training; auto: the strategy's own, the others for strategies that leave it open"
    )
    proximal_mu: NonNegative = Field(0.01, description="mu of FedProx's proximal term (local-rule = prox)")
    report_loss: bool = Field(True, description="replies may carry losses; FedALIGN, ADA-GD and q-FFL need them")
    clipping_norm: NonNegative = Field(0.0, description="clients clip their update to this l2 norm; 0: no clipping")
    dp_epsilon: NonNegative = Field(0.0, description="epsilon of local differential privacy; 0: none")
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="its delta")
    dp_sensitivity: Positive = Field(1.0, description="its sensitivity, in units of the model's parameters")

    tuning_steps: CountOrZero = Field(
        0, description="local fine-tuning steps before MaxFL's weight is computed, and at evaluation"
    )
    server_lr: Positive = Field(1.0, description="MaxFL: eta_g; SCAFFOLD: eta_g; pFedMe: beta")
    stabilizer: Positive = Field(1e-3, description="MaxFL: epsilon in the denominator")

    priority_clients: Annotated[int, Field(ge=-1)] = Field(
        -1, description="FedALIGN: the first so many clients ask for priority; -1: half of them"
    )
    priority_ids: str = Field("", description="FedALIGN: client-ids with priority, by commas; empty: those who ask")
    epsilon: Annotated[float, Field(allow_inf_nan=False)] = Field(
        0.2, description="FedALIGN: how close a non-priority client's loss must be to F; below 0: none is"
    )
    epsilon_schedule: Literal["constant", "linear", "exponential", "step"] = Field(
        "constant", description="FedALIGN: epsilon over the rounds; linear: to 0 at the last one"
    )
    epsilon_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        0.99, description="FedALIGN: factor a round, for epsilon-schedule = exponential"
    )
    epsilon_drop: Share = Field(
        0.5, description="FedALIGN: share of the rounds after which epsilon is 0, for epsilon-schedule = step"
    )
    warmup_share: Share = Field(0.1, description="FedALIGN: share of the rounds with priority clients only")
    match_on: Literal["loss", "error"] = Field("loss", description="FedALIGN: what is compared; error: 1 - accuracy")
    global_loss: Literal["fresh", "stale"] = Field(
        "fresh", description="FedALIGN: F of the model that is sent (one more exchange), or of the one before"
    )
    max_non_priority_weight: NonNegative = Field(
        0.0, description="FedALIGN: most a non-priority client's p_k may be; 0: no limit"
    )

    precision: Positive = Field(0.3, description="ADA-GD: epsilon, the loss at which a rational client leaves")
    step_size: Positive = Field(0.1, description="ADA-GD: eta")
    slack: Positive = Field(
        2.0, description="ADA-GD: D holds clients with a predicted loss of at most slack * epsilon"
    )
    on_missing: Literal["wait", "proceed"] = Field(
        "wait", description="ADA-GD: where a reply is missing the model stays, or goes on (outside the theory)"
    )
    gradient_batch: CountOrZero = Field(
        0, description="ADA-GD: examples a gradient; 0: all (others are outside the theory)"
    )
    gradient_steps: Count = Field(1, description="ADA-GD: local steps a gradient; above 1 is outside the theory")

    fairness_q: NonNegative = Field(1.0, description="q-FFL: q; 0 is unweighted FedAvg")
    maml_learning_rate: Positive = Field(0.01, description="PerFedAvg: alpha, the inner step")
    maml_order: Literal["first", "second"] = Field("second", description="PerFedAvg: HF (second order) or FO (first)")
    adaptation_steps: CountOrZero = Field(1, description="PerFedAvg: inner steps before the second evaluation")
    moreau_lambda: Positive = Field(15.0, description="pFedMe: lambda, strength of the Moreau envelope")
    moreau_steps: Count = Field(5, description="pFedMe: K, inner steps a minibatch")
    personal_learning_rate: Positive = Field(0.05, description="pFedMe: learning rate of the inner steps")

    byzantine_share: Share = Field(0.0, description="experiments: share of clients that attack, MaxFL Table 2")
    byzantine_attack: Literal["inflate", "claim"] = Field(
        "inflate", description="experiments: the weight is computed from an inflated loss, or made up"
    )
    byzantine_inflation: Positive = Field(10.0, description="experiments: factor on an attacker's loss")
    byzantine_claim: float = Field(0.25, allow_inf_nan=False, description="experiments: the weight it makes up")
    byzantine_noise: NonNegative = Field(
        1.0, description="experiments: noise on an attacker's model, in standard deviations of its update"
    )

    initial_model: str = Field("", description="safetensors file to start from; empty: the task's initial model")
    out: str = Field("", description="folder of the run; empty: runs/DATE-TIME-STRATEGY-TASK")
    resume: bool = Field(False, description="continue the run in `out` from its last finished round")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"clients-per-round = {self.clients_per_round} is not allowed: "
                f"at most clients = {self.clients} (0: all)"
            )
        total = self.clients + self.unseen_clients
        if self.min_available_nodes > total:
            raise ValueError(
                f"min-available-nodes = {self.min_available_nodes} is not allowed: at most {total} "
                f"(clients + unseen-clients)"
            )
        if self.local_steps == 0 and self.local_epochs == 0:
            raise ValueError("local-steps = 0 is not allowed where local-epochs = 0: one of them must be positive")
        if self.priority_clients > self.clients:
            raise ValueError(
                f"priority-clients = {self.priority_clients} is not allowed: at most clients = {self.clients}"
            )
        if self.mandatory_rounds > self.rounds:
            raise ValueError(
                f"mandatory-rounds = {self.mandatory_rounds} is not allowed: at most rounds = {self.rounds}"
            )
        return self

    def task_settings(self) -> TaskSettings:
        """Return the part of the settings that decides what is learned, on which data."""
        return TaskSettings(**{name: getattr(self, name) for name in TaskSettings.model_fields})

    @property
    def resolved_mandatory_rounds(self) -> int:
        """Rounds in which clients are asked not to opt out: the setting, or max(10, 5 % of the rounds)."""
        return default_mandatory_rounds(self.rounds) if self.mandatory_rounds < 0 else self.mandatory_rounds

    @property
    def resolved_participation(self) -> str:
        """How a client decides: the setting, or what the strategy's paper assumes."""
        if self.participation != "auto":
            return self.participation
        return {"fedalign": "match", "adagd": "defect", "maxfl-adagd": "defect"}.get(self.strategy, "appeal")

    @property
    def resolved_priority_clients(self) -> int:
        """How many of the first clients ask for priority: the setting, or half."""
        return -(-self.clients // 2) if self.priority_clients < 0 else self.priority_clients

    @property
    def resolved_min_available_nodes(self) -> int:
        """Clients to wait for before round 1: the setting, or all."""
        return self.min_available_nodes or self.clients + self.unseen_clients
