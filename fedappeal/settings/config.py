"""The run configuration: one validated set of settings for every way of running.

The keys are those of ``[tool.flwr.app.config]`` in pyproject.toml, in kebab case, and the command line's options.
Flower's run configuration holds scalars only, so "not set" is written as 0, -1 or "" where a key says so. Settings of
a plug-in (a strategy, a policy, ...) stand under its name: ``maxfl.server-lr``. They are carried here as they were
given; `fedappeal.core.plugins` checks them where the plug-in is known.
"""

import difflib
import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from fedappeal.settings.rounds import MOST_GOODWILL, MOST_ROUNDS, default_mandatory_rounds, most_asked_rounds

Scalar = bool | int | float | str
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
TrimShare = Annotated[float, Field(gt=0, lt=0.5)]
LrSchedule = Literal["constant", "linear", "cosine"]
"""How the learning rate falls over the rounds."""
InfluenceBound = Literal["off", "bounded"]
"""Whether one client's influence on the model has bounds."""
Aggregation = Literal["mean", "median", "trimmed-mean"]
"""What a round makes of its models, where that is an average."""


AUTO: Literal["auto"] = "auto"


class ConfigError(ValueError):
    """A setting that is not allowed; the message has one line a setting."""


def rounds_or_auto(value: object, least: int = -1) -> int | str:
    """Return a number of rounds, or ``auto``.

    Args:
        value: as it was given.
        least: the smallest number.

    Raises:
        ValueError: for anything else.
    """
    text = str(value)
    if text == AUTO:
        return text
    if isinstance(value, bool) or not text.removeprefix("-").isdecimal() or int(text) < least:
        raise ValueError(f"{AUTO}, or a whole number, at least {least}")
    return int(text)


RoundsOrAuto = Annotated[int | Literal["auto"], PlainValidator(rounds_or_auto)]
"""A number of rounds, or ``auto``; -1 where a number is not set."""


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
        """Return all settings as scalars under their kebab-case keys, without those that are not set."""
        return self.model_dump(by_alias=True, exclude_none=True)


def scalar(text: str) -> Scalar:
    """Return a text as a boolean or number, else itself (``007`` too)."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] == "0" and text.isdigit() and len(text) > 1:
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def plugin_setting(text: str) -> tuple[str, Scalar]:
    """Return the key and the value of ``NAME.KEY=VALUE``.

    Raises:
        ConfigError: for another form.
    """
    key, equals, value = text.partition("=")
    name, dot, rest = key.strip().partition(".")
    if not (equals and name and dot and rest):
        raise ConfigError(f"set = '{text}' is not allowed: NAME.KEY=VALUE, a setting of a plug-in")
    return key.strip().replace("_", "-"), scalar(value.strip())


def plugin_settings(text: str) -> dict[str, Scalar]:
    """Return settings of plug-ins written as ``NAME.KEY=VALUE``, separated by spaces.

    Raises:
        ConfigError: for another form.
    """
    try:
        return dict(plugin_setting(part) for part in shlex.split(text))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"set = '{text}' is not allowed: {error}") from None


class WithPlugins(Settings):
    """General settings, and beside them settings of plug-ins under ``NAME.KEY``."""

    plugins: tuple[tuple[str, Scalar], ...] = Field((), exclude=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, ignore_unknown: bool = False) -> Self:
        """Validate settings; dotted keys, and those in the text ``set``, belong to plug-ins.

        Args:
            values: by kebab-case key; ``set`` holds ``NAME.KEY=VALUE``, separated by spaces.
            ignore_unknown: leave general keys out that this version does not have.

        Raises:
            ConfigError: one line a setting that is wrong.
        """
        own = {key: value for key, value in values.items() if "." not in key and key not in ("set", "plugins")}
        given = {key.replace("_", "-"): value for key, value in values.items() if "." in key}
        given |= plugin_settings(str(values.get("set", "")))
        if wrong := [key for key, value in given.items() if not isinstance(value, Scalar)]:
            raise ConfigError(
                "\n".join(f"{key} = {given[key]!r} is not allowed: a number, a text, true or false" for key in wrong)
            )
        if ignore_unknown:
            known = set(cls.keys())
            own = {key: value for key, value in own.items() if key in known}
        return super().parse(own | {"plugins": tuple(sorted(given.items()))})

    @classmethod
    def keys(cls) -> list[str]:
        """Return all general keys in kebab case."""
        return [_kebab(name) for name in cls.model_fields if name != "plugins"]

    def as_config(self) -> dict[str, Scalar]:
        """Return all settings as scalars, those of plug-ins under ``NAME.KEY``."""
        return {**super().as_config(), **dict(self.plugins)}

    def section(self, name: str) -> dict[str, Scalar]:
        """Return the settings given for one plug-in, by their own keys."""
        return section(dict(self.plugins), name)

    def sections(self) -> list[str]:
        """Return the names under which settings of plug-ins are given."""
        return sorted({key.partition(".")[0] for key, _ in self.plugins})

    def with_plugins(self, more: Iterable[tuple[str, Scalar]]) -> Self:
        """Return a copy with further settings of plug-ins, which count before those that are there."""
        return self.model_copy(update={"plugins": tuple(sorted({**dict(self.plugins), **dict(more)}.items()))})


def section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values under ``NAME.KEY`` of one name, by their own keys."""
    return {key.partition(".")[2]: value for key, value in values.items() if key.partition(".")[0] == name}


PAPERS: Mapping[str, Scalar] = MappingProxyType(
    {"judge-on": "train", "adaptation-steps": 0, "goodwill": -1, "mandatory-rounds": -1}
)
"""How clients judge and join in the papers, and in runs of versions without these settings."""


class TaskSettings(WithPlugins):
    """What is learned, and how its data is spread over the clients.

    A partition is a pure function of these.
    """

    task: str = Field("digits", min_length=1, description="task by name, or package.module:name of your own")
    model: Literal["auto", "mlp", "logistic", "cnn"] = Field("auto", description="auto: the task's default")
    share: str = Field(
        "auto",
        min_length=1,
        description="what of the model travels; the rest stays with the client: all, trainable, or names as patterns "
        "(body.*, or !head.* for all but these); auto: as the task says, usually all",
    )
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
    seed: CountOrZero = Field(0, description="seed of every draw of the run")


class RunConfig(TaskSettings):
    """All settings of a run."""

    strategy: str = Field("maxfl", min_length=1, description="server strategy")
    rounds: Count = Field(20, le=MOST_ROUNDS, description="number of rounds")
    clients_per_round: CountOrZero = Field(0, description="clients folded a round; 0: all")
    min_clients: CountOrZero = Field(
        0,
        description="clients without which round 1 does not begin; 0: all are waited for, and the run begins without "
        "those that do not come (start-after)",
    )
    max_clients: CountOrZero = Field(
        0, description="clients that a deployed run takes in; 0: twice as many as clients and unseen-clients together"
    )
    start_timeout: Positive = Field(300.0, description="seconds to wait for min-clients")
    start_after: Positive = Field(
        30.0,
        description="for min-clients = 0: seconds after the last client came when round 1 begins without the others",
    )
    round_timeout: Positive = Field(60.0, description="deadline of one exchange, in seconds")
    evaluate_every: CountOrZero = Field(1, description="evaluate every N rounds; 0: after the last only")
    evaluate_train: bool = Field(
        True, description="evaluation also asks whether the model appeals by its training loss: one more pass"
    )
    report_train_loss: bool = Field(
        False, description="experiments: evaluation reports the training loss; beside an appeal weight it tells rho_k"
    )
    measure_leavers: bool = Field(True, description="clients that left still answer evaluation")

    participation: str = Field(
        "auto",
        min_length=1,
        description="policy of clients whose owner names none: a name, a mixture (appeal=0.7,always=0.3), or auto: "
        "the strategy's own",
    )
    mandatory_rounds: RoundsOrAuto = Field(
        AUTO,
        description="rounds in which clients are asked not to opt out: the first N; -1: max(10, 5 % of the rounds); "
        "auto: while more and more clients find that the model appeals, in at most half of the rounds",
    )
    goodwill: Annotated[int, Field(ge=-1, le=MOST_GOODWILL)] = Field(
        20,
        description="rounds in which a client whose owner says nothing joins on request although the model does not "
        "meet its requirement; -1: all in which it is asked",
    )
    on_empty_round: Literal["ask-all", "keep"] = Field(
        "ask-all", description="after a round without a joiner: the next is mandatory, or nothing changes"
    )
    ask_on: bool = Field(
        True,
        description="others are asked in place of clients that sit out; false: a round asks clients-per-round once",
    )
    requirement: str = Field("solo", min_length=1, description="where a client's requirement rho_k comes from")
    judge_on: Literal["held-out", "train"] = Field(
        "held-out",
        description="data on which a client compares models with its requirement: a third of its training data on "
        "which it never trains, or what it trains on, as the papers have it",
    )
    adaptation_steps: CountOrZero = Field(
        5,
        description="for judge-on = held-out: local steps after which a client uses a model, and judges it; 0: as it "
        "is sent; personalised strategies have steps of their own",
    )
    loss_mode: Literal["evaluation", "training"] = Field(
        "evaluation", description="how a client measures F_k and rho_k on its training data; training: dropout is on"
    )

    influence: InfluenceBound = Field(
        "off",
        description="bounds on one client's weight and update, against the cohort's; local and submit: bounded, "
        "where nothing is said",
    )
    influence_weight: AtLeastOne = Field(
        3.0, description="for influence = bounded: most a client's weight may be, in medians"
    )
    influence_norm: AtLeastOne = Field(
        2.0,
        description="for influence = bounded: most a client's weight times the norm of its update may be, in "
        "medians; a client whose update is twice as long is left out",
    )
    aggregation: Aggregation = Field(
        "mean",
        description="what a round makes of its models, coordinate by coordinate; but for the mean, the server holds "
        "all of them at once, and each counts once",
    )
    trim_share: TrimShare = Field(
        0.2, description="for aggregation = trimmed-mean: share of the values left out at either end"
    )

    learning_rate: Positive = Field(0.1, description="local learning rate")
    lr_schedule: LrSchedule = Field("constant", description="how the learning rate falls from round to round")
    lr_warmup_rounds: CountOrZero = Field(0, description="first rounds, in which it rises to learning-rate; 0: none")
    lr_final_share: PositiveShare = Field(
        0.1, description="for lr-schedule = linear and cosine: learning rate of the last round, as a share"
    )
    batch_size: Count = Field(32, description="examples a local step")
    local_steps: CountOrZero = Field(30, description="local steps a round; 0: use local-epochs")
    local_epochs: CountOrZero = Field(0, description="local epochs a round, where local-steps is 0")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="momentum of local SGD")
    weight_decay: NonNegative = Field(0.0, description="local weight decay; adamw's is decoupled")
    training_precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of local forward and backward passes; bfloat16: clients train one by one"
    )

    local_rule: str = Field(
        "auto",
        min_length=1,
        description="local training; auto: the strategy's own, another where it leaves that open",
    )
    report_loss: bool = Field(True, description="replies may carry losses; some strategies need them")
    clipping_norm: NonNegative = Field(0.0, description="clients clip their update to this l2 norm; 0: no clipping")
    dp_epsilon: NonNegative = Field(0.0, description="epsilon of local differential privacy; 0: none")
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="its delta")
    dp_sensitivity: Positive = Field(1.0, description="its sensitivity, in units of the model's parameters")

    tuning_steps: CountOrZero = Field(0, description="local fine-tuning steps before a client judges the model")
    pack: bool = Field(
        True, description="send a model as one array a dtype; false: named arrays, for other ClientApps"
    )

    byzantine_share: Share = Field(0.0, description="experiments: share of clients that attack")
    byzantine_attack: Literal["inflate", "claim", "zero", "huge", "flip"] = Field(
        "inflate",
        description="experiments: the weight is computed from an inflated loss, or made up; or the model is replaced "
        "(zeros, 1e30, the update times byzantine-scale) and every claim is the largest",
    )
    byzantine_inflation: Positive = Field(10.0, description="experiments: factor on an attacker's loss")
    byzantine_claim: float = Field(0.25, allow_inf_nan=False, description="experiments: the weight it makes up")
    byzantine_scale: float = Field(
        -20.0, allow_inf_nan=False, description="experiments: factor on the update, for byzantine-attack = flip"
    )
    byzantine_noise: NonNegative = Field(
        1.0, description="experiments: noise on an attacker's model, in standard deviations of its update"
    )

    initial_model: str = Field("", description="safetensors file to start from; empty: the task's initial model")
    out: str = Field("", description="folder of the run; empty: runs/DATE-TIME-STRATEGY-TASK")
    resume: bool = Field(False, description="continue the run in `out` from its last finished round")
    schedule_rounds: CountOrZero = Field(
        0, description="number of rounds that a continued run began with, for all that follows from it; 0: rounds"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"clients-per-round = {self.clients_per_round} is not allowed: "
                f"at most clients = {self.clients} (0: all)"
            )
        total = self.clients + self.unseen_clients
        if self.min_clients > total:
            raise ValueError(
                f"min-clients = {self.min_clients} is not allowed: at most {total} (clients + unseen-clients)"
            )
        if 0 < self.max_clients < self.resolved_min_clients:
            raise ValueError(
                f"max-clients = {self.max_clients} is not allowed: at least min-clients = {self.resolved_min_clients}"
            )
        if self.local_steps == 0 and self.local_epochs == 0:
            raise ValueError("local-steps = 0 is not allowed where local-epochs = 0: one of them must be positive")
        if isinstance(self.mandatory_rounds, int) and self.mandatory_rounds > self.rounds:
            raise ValueError(
                f"mandatory-rounds = {self.mandatory_rounds} is not allowed: at most rounds = {self.rounds}"
            )
        if self.lr_warmup_rounds >= self.rounds:
            raise ValueError(
                f"lr-warmup-rounds = {self.lr_warmup_rounds} is not allowed: less than rounds = {self.rounds}"
            )
        return self

    def task_settings(self) -> TaskSettings:
        """Return the part of the settings that decides what is learned, on which data."""
        return TaskSettings(**{name: getattr(self, name) for name in TaskSettings.model_fields})

    @property
    def scheduled_rounds(self) -> int:
        """Number of rounds from which schedules and shares follow: that with which the run began."""
        return self.schedule_rounds or self.rounds

    @property
    def resolved_mandatory_rounds(self) -> int:
        """Most mandatory rounds: the setting, max(10, 5 % of the rounds), or half of them where they are chosen."""
        if not isinstance(self.mandatory_rounds, int):
            return most_asked_rounds(self.scheduled_rounds)
        return default_mandatory_rounds(self.scheduled_rounds) if self.mandatory_rounds < 0 else self.mandatory_rounds

    @property
    def holds_out(self) -> bool:
        """Whether clients hold a third of their training data out, to judge models by."""
        return self.judge_on == "held-out"

    @classmethod
    def parse_recorded(cls, values: Mapping[str, Any], *, ignore_unknown: bool = False) -> Self:
        """Validate settings that a run's folder or another program wrote; what they lack means what it always did.

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
    def resolved_min_clients(self) -> int:
        """Clients to wait for before round 1: the setting, or all."""
        return self.min_clients or self.clients + self.unseen_clients

    @property
    def resolved_max_clients(self) -> int:
        """Clients that a deployed run takes in: the setting, or twice as many as there are."""
        return self.max_clients or 2 * (self.clients + self.unseen_clients)
