"""The contract of an algorithm: its decisions on server and client, each with a default.

FedAvg is one of them: `weight` (n_k). What runs a round is in `strategies.rounds.round_steps`, what runs them all in
`strategies.rounds.strategy`, whose class `Strategy` is what an algorithm derives from. Modules that need Flower
are imported where they are used: reading an algorithm's settings loads neither Flower nor torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fedappeal.core.local_rule import LocalRule as Rule
from fedappeal.core.measured import Measured
from fedappeal.core.plugins import Plugin, PluginSettings, parse_section
from fedappeal.protocol import keys
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from strategies.rounds.asking import Asking
from strategies.rounds.exchange.members import Member, Members
from strategies.rounds.round import NOTHING, Instructions, Round
from strategies.rounds.shared import SharedSettings
from strategies.rounds.sums.weighted_sum import Refused

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, MetricRecord
    from numpy.typing import NDArray

    from client.state.store import Store
    from strategies.rounds.exchange.replies import Reply


def log(value: float) -> float:
    """Return the logarithm of a number of at least 0; minus infinity for 0."""
    return math.log(value) if value else -math.inf


Claims = Mapping[str, float]
"""What a joined client tells the server about itself, by key."""


class StrategySettings(PluginSettings):
    """Settings of a strategy; derive from it, one field a setting."""


class Algorithm(Plugin):
    """What an algorithm decides.

    Args:
        settings: the algorithm's own ``Settings`` and the `SharedSettings`, all by keyword, all optional.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    Settings: ClassVar[type[PluginSettings]] = StrategySettings
    LocalRule: ClassVar[type[Rule] | None] = None
    """How clients train, where that is part of the algorithm; None: by SGD, or by the rule that the run names."""
    policy: ClassVar[str] = "appeal"
    """What clients do whose owner, and whose run, says nothing."""
    needs_losses: ClassVar[bool] = False
    """Whether the server cannot do without the clients' losses."""
    needs_weight: ClassVar[bool] = False
    """Whether it cannot do without what `report` returns; True in a class that writes `report`, unless that says."""
    needs_appeal: ClassVar[bool] = False
    """Whether it cannot do without the clients' word that the model meets their requirement."""
    compares_losses: ClassVar[bool] = False
    """Whether a client compares its loss with rho_k for its report, so that rho_k has to be a loss."""
    needs_everybody: ClassVar[bool] = False
    """Whether every round asks all clients."""
    only_sums: ClassVar[bool] = False
    """Whether sums over the replies are all that the server needs, so that it need not see a single reply."""
    loss_modes: ClassVar[tuple[str, ...]] = ("evaluation", "training")
    """Ways of measuring a loss that the algorithm allows."""
    weight_claim: ClassVar[str] = ""
    """The claim by which a client is weighted, where there is one; an attacker makes it up."""
    from_run: ClassVar[Mapping[str, str]] = {}
    """General settings that stand in for own settings that are not set: own field to general key."""
    reply_records: ClassVar[tuple[str, ...]] = ()
    """ArrayRecords that a joined reply carries besides the model."""
    asks_on: ClassVar[bool] = True
    """Whether clients that sit out are replaced by others, wave after wave."""
    untold: ClassVar[frozenset[str]] = frozenset()
    """Keys of own settings that messages do not carry, because no client needs them."""
    metric: Metric = ACCURACY
    """The task's primary metric; the server sets it before a run."""
    other_metrics: tuple[str, ...] = ()
    """Names of the task's further metrics; set in the same way."""
    may_refuse: ClassVar[bool] = False
    """Whether the server may have no use for the update of a client that joined."""
    averages: ClassVar[bool] = False
    """Whether a round's result is an average of its models, in whose place a median may stand."""
    unbounded: ClassVar[str] = ""
    """Why no bound on one client's influence makes sense; empty: `influence = bounded` is allowed."""
    still_open: ClassVar[str] = ""
    """By what one client still has influence where it is bounded; empty: by nothing but its bounded share."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "report" in cls.__dict__ and "needs_weight" not in cls.__dict__:
            cls.needs_weight = True
        rule = cls.__dict__.get("LocalRule")
        if rule is not None and "Settings" not in rule.__dict__:
            rule.Settings, rule.section = cls.Settings, cls.name

    def __init__(self, **settings: Any) -> None:
        shared = {key: settings.pop(key) for key in SharedSettings.model_fields if key in settings}
        self.shared = SharedSettings.parse(shared)
        self.settings = parse_section(type(self), settings)
        if self.needs_everybody and self.shared.clients_per_round:
            raise ConfigError(
                f"clients-per-round = {self.shared.clients_per_round} is not allowed with strategy = '{self.name}': "
                "every round needs all clients (None)"
            )
        self.check_influence(self.shared.influence, self.shared.aggregation)
        self.num_rounds = 0
        """Rounds with which the run began, for schedules and shares of them; 0 while that is not known."""

    @classmethod
    def of_run(cls, config: RunConfig, **shared: Any) -> Self:
        """Return the algorithm with a run's settings.

        Args:
            config: the run's settings.
            shared: the `SharedSettings`, by keyword.

        Raises:
            ConfigError: for a setting that is not allowed.
        """
        given = {key.replace("-", "_"): value for key, value in config.section(cls.name).items()}
        general = config.as_config()
        filled = {own: general[key] for own, key in cls.from_run.items()}
        return cls(**{**filled, **given}, **shared)

    # -- on the server -------------------------------------------------------------------------------

    @classmethod
    def check_influence(cls, influence: str, aggregation: str) -> None:
        """Check that a round of the algorithm can be bounded, and averaged, as two settings say.

        Raises:
            ConfigError: names the setting.
        """
        if influence == "bounded" and cls.unbounded:
            raise ConfigError(
                f"influence = 'bounded' is not allowed with strategy = '{cls.name}': {cls.unbounded} (off)"
            )
        if aggregation != "mean" and not cls.averages:
            raise ConfigError(
                f"aggregation = '{aggregation}' is not allowed with strategy = '{cls.name}': its rounds weight "
                "clients, or do more than average their models (mean)"
            )

    @classmethod
    def bounds_lack(cls, config: RunConfig, settings: PluginSettings) -> str:
        """Return what `influence = bounded` lacks where clients are not the runtime's own; empty: nothing."""
        return ""

    @classmethod
    def check_run(cls, config: RunConfig, settings: PluginSettings) -> None:
        """Check a run's settings beyond what the attributes say, before it starts.

        Raises:
            ConfigError: for a combination that is not allowed.
        """

    @classmethod
    def notes(cls, config: RunConfig, settings: PluginSettings) -> list[str]:
        """Return what a run's heading says of its rounds, in a few words each."""
        return []

    @classmethod
    def needs_train_split(cls, settings: PluginSettings) -> bool:
        """Return whether the server cannot do without the clients' answers about their training examples.

        By default where the class writes `survey`.
        """
        return cls.survey is not Algorithm.survey

    def check_model(self, names: Sequence[str]) -> None:
        """Check that the strategy can train a model with parameters and buffers of these names.

        Raises:
            ConfigError: otherwise; names what it cannot train.
        """

    @property
    def waits_for_all(self) -> bool:
        """Whether a round is in vain without every client.

        A client that missed a deadline is then waited for in the next round.
        """
        return False

    def pool(self, number: int, members: Members) -> list[Member]:
        """Return the clients that round ``number`` may ask; the sampling orders them."""
        return members.available()

    def moves_model(self, member: Member) -> bool:
        """Whether a round with this client alone could move the model."""
        return True

    def asks(self, number: int, asking: Asking) -> bool:
        """Whether to ask clients not to opt out of a round, where ``mandatory-rounds = auto``.

        Args:
            number: the round, from 1.
            asking: what is known of the clients; it allows half of the rounds at most, whatever is returned.
        """
        return asking.asks(number, self.num_rounds)

    def begin(self, round: Round) -> None:
        """Begin a round; what it gathers besides the sum of models goes into ``round.carry``."""

    def survey(self, round: Round, order: Sequence[Member]) -> Sequence[Member]:
        """Return clients that measure the model before any client is asked to train.

        Args:
            round: the round.
            order: the clients that it may ask, in order.
        """
        return []

    def surveyed(self, round: Round, member: Member, metrics: "MetricRecord") -> None:
        """Take in one client's answer to `survey`: loss and metrics on its training data.

        Raises:
            Refused: if it is not allowed.
        """

    def wave(self, round: Round, members: Sequence[Member]) -> Instructions:
        """Return what the next clients are told besides the model and the settings."""
        return NOTHING

    def weight(self, reply: "Reply") -> float:
        """Return a joined client's aggregation weight, at least 0.

        Raises:
            Refused: if what the client claims is not allowed.
        """
        return 1.0

    def log_weight(self, round: Round, reply: "Reply") -> float:
        """Return the logarithm of the weight by which clients are compared where their influence is bounded.

        Raises:
            Refused: if what the client claims is not allowed.
        """
        return log(self._checked_weight(reply))

    def update_unit(self, round: Round, reply: "Reply") -> float:
        """Return how long a client's update may be beside another's, above 0."""
        return 1.0

    def add(self, round: Round, reply: "Reply") -> None:
        """Take in one joined reply, as it comes; ``reply.counts`` of its weight counts.

        Raises:
            Refused: if what the client claims is not allowed; nothing is changed.
        """
        weight = self._checked_weight(reply)
        round.sum.add(reply.arrays, weight * reply.counts)
        round.claimed_weight += weight

    def _checked_weight(self, reply: "Reply") -> float:
        if not 0 <= (weight := self.weight(reply)) < math.inf:
            raise Refused(f"weight = {weight} is not allowed: a finite number, at least 0")
        return weight

    def update(self, round: Round) -> "ArrayRecord":
        """Return the next global model from at least one reply: by default the weighted average."""
        if not round.sum.weight:
            return round.model
        return round.sum.combine(keep=0.0, scale=1.0 / round.sum.weight)

    def finish(self, round: Round) -> "ArrayRecord | None":
        """Return the next global model; None where it stays."""
        return self.update(round) if round.sum.count else None

    def evaluation_settings(self) -> dict[str, Scalar]:
        """Return what EVALUATE carries besides the model, the round and the general settings."""
        return {}

    def summarise(self, answers: Sequence[tuple[Member, "MetricRecord"]]) -> dict[str, float]:
        """Return what the answers to a round's EVALUATE say together: numbers for the history."""
        from strategies.rounds.evaluation import summarise

        return summarise(answers, self.metric, self.other_metrics)

    def carried(self) -> dict[str, Any]:
        """Return what the algorithm carries from round to round.

        By name: a dict of scalars and of lists of scalars, or a dict of NumPy arrays.
        """
        return {}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up what `carried` returned; an empty dict is left out."""

    # -- on the client -------------------------------------------------------------------------------

    def report(self, measured: Measured) -> Claims:
        """Return what a client that joined tells the server besides its model.

        Args:
            measured: what the client measured of the model that was sent, and what it requires.
        """
        return {}

    def false_report(self, measured: Measured, pretended: Measured) -> Claims:
        """Return what an attacker tells that pretends another measurement than its own, in experiments.

        Args:
            measured: what the client measured.
            pretended: what it pretends.
        """
        return self.report(pretended)

    def own_model(self, store: "Store", run_key: str, before: int) -> "Mapping[str, NDArray[Any]]":
        """Return the model of a client's own by which it is evaluated a second time; empty: none.

        Args:
            store: the client's memory.
            run_key: which run.
            before: the model is that from before this round.
        """
        return {}

    @property
    def has_own_models(self) -> bool:
        """Whether clients keep a model of their own, by which they are evaluated a second time."""
        return type(self).own_model is not Algorithm.own_model

    def adaptation(self) -> tuple[Rule, Mapping[str, Scalar]] | None:
        """Return how a client adapts the model before a second evaluation: rule, training settings."""
        return None

    def use(self) -> tuple[Rule, Mapping[str, Scalar]] | None:
        """Return the local training after which a client would use a model that it is sent; by default `adaptation`.

        Where clients judge by held-out data, this is what they judge.
        """
        return self.adaptation()

    def tuning_steps(self) -> int:
        """Return the fine-tuning steps before a client judges the model it is sent."""
        return 0

    def granted(self, told: Mapping[str, Scalar]) -> bool | None:
        """Return whether a message grants a client priority; None: it does not say.

        Args:
            told: what the message tells about the strategy, by key.
        """
        return None

    def asks_priority(self, client: int, clients: int) -> bool:
        """Whether client number ``client`` of ``clients`` asks for priority by default."""
        return False

    @property
    def reports(self) -> bool:
        """Whether a joined client reports anything that it has to measure."""
        return type(self).report is not Algorithm.report

    # -- what messages say of it ---------------------------------------------------------------------

    def told(self) -> dict[str, Scalar]:
        """Return what every message says of the strategy: name and settings."""
        own = self.settings.as_config()
        settings = {key: value for key, value in own.items() if isinstance(value, Scalar) and key not in self.untold}
        return {keys.STRATEGY: self.name, **self.under_name(settings)}

    def under_name(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return values by their keys in messages: ``NAME.KEY``."""
        return {f"{self.name}.{key}": value for key, value in values.items()}

    @property
    def rule_name(self) -> str:
        """The local rule that clients follow, unless the run names another."""
        return self.LocalRule.name if self.LocalRule is not None else "sgd"
