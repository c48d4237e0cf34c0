"""The contract of an algorithm: what it decides on the server, each decision with a default.

FedAvg decides one thing: `weight` (n_k). What clients do stands in `fedappeal.core.algorithm.ClientSide`; what few
algorithms decide, in small objects that an algorithm names on its class: a `Survey`, an `Influence`. What runs the
rounds is `strategies.rounds.rounds.Rounds`, which holds an algorithm. Modules that need Flower are imported where
they are used: reading an algorithm's settings loads neither Flower nor torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fedappeal.core.algorithm import ClientSide, Part
from fedappeal.protocol.foreign_text import one_line
from fedappeal.settings.config import ConfigError, RunConfig
from strategies.rounds.exchange.members import Member
from strategies.rounds.reply import checked_weight
from strategies.rounds.round import KEEP_MODEL, NOTHING, Instructions, Kept, Model, Reply, Round
from strategies.rounds.shared import SharedSettings
from strategies.rounds.summary import summarise


class Survey(Part):
    """A question to clients before any trains: the model's loss on their training examples."""

    @classmethod
    def needed(cls, settings: Any) -> bool:
        """Return whether the server needs the clients' answers, with these settings of the algorithm."""
        return True

    def asked(self, round: Round, order: Sequence[Member]) -> Sequence[Member]:
        """Return the clients that are asked.

        Args:
            round: the round.
            order: the clients that the round may ask, in order.
        """
        return order

    def answered(self, round: Round, member: Member, metrics: Mapping[str, Any]) -> None:
        """Take in one client's answer: loss and metrics on its training data.

        Raises:
            Refused: if it is not allowed.
        """


class Influence(Part):
    """One client's influence on the model, where it is bounded: ``influence``."""

    @classmethod
    def lack(cls, config: RunConfig, settings: Any) -> str:
        """Return what `influence = bounded` lacks where clients are not the runtime's own.

        Empty where it lacks nothing.
        """
        return ""

    def moves_model(self, round: Round, member: Member) -> bool:
        """Whether a round with this client alone could move the model."""
        return True

    def log_weight(self, round: Round, reply: Reply) -> float | None:
        """Return the logarithm of the weight by which clients are compared.

        None where that is the aggregation weight.

        Raises:
            Refused: if what the client claims is not allowed.
        """
        return None

    def updates(self, round: Round, reply: Reply) -> Reply:
        """Return the reply with the further records that are bounded and added.

        Raises:
            Refused: if one of them is not allowed.
        """
        return reply

    def update_unit(self, round: Round, reply: Reply) -> float:
        """Return how long a client's update may be beside another's, above 0."""
        return 1.0


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def refuse_batch_norm(strategy: str, names: Sequence[str]) -> None:
    """Check that no array of a model is a running statistic of batch normalisation.

    Args:
        strategy: the strategy's name.
        names: of the model's parameters and buffers.

    Raises:
        ConfigError: names the layers.
    """
    layers = dict.fromkeys(
        name.rpartition(".")[0] or "(unnamed)" for name in names if name.rpartition(".")[2] in _STATISTICS
    )
    if layers:
        raise ConfigError(
            f"model with BatchNorm is not allowed with strategy = '{strategy}': {', '.join(layers)} "
            "(parameters alone, no running statistics)"
        )


class Algorithm(ClientSide):
    """Base of algorithms: the server's decisions, each with a default."""

    survey: ClassVar[type[Survey] | None] = None
    """A question to some clients before any client trains; None: there is none."""
    influence: ClassVar[type[Influence]] = Influence
    """How `influence = bounded` compares the clients."""
    averages: ClassVar[bool] = False
    """Whether a round's result is an average of its models, in whose place a median may stand."""
    unbounded: ClassVar[str] = ""
    """Reason why one client's influence cannot be bounded; empty: `influence = bounded` is allowed."""
    still_open: ClassVar[str] = ""
    """By what one client still has influence where it is bounded; empty: by nothing but its bounded share."""
    may_refuse: ClassVar[bool] = False
    """Whether the server may reject a joined client's update."""
    needs_everybody: ClassVar[bool] = False
    """Whether every round asks all clients."""
    refuses_batch_norm: ClassVar[bool] = False
    """Whether a step may go beyond every client's model, which running statistics do not bear."""
    reply_records: ClassVar[tuple[str, ...]] = ()
    """ArrayRecords that a joined reply carries besides the model."""
    asks_on: ClassVar[bool] = True
    """Whether clients that sit out are replaced by others, wave after wave."""
    untold: ClassVar[frozenset[str]] = frozenset()
    """Keys of own settings that messages do not carry, because no client needs them."""
    waits_for_all: bool = False
    """Whether a round is in vain without every client: one that missed a deadline is waited for in the next round."""

    @classmethod
    def check_run(cls, config: RunConfig, settings: Any) -> None:
        """Check a run's settings beyond what the attributes say, before it starts.

        Raises:
            ConfigError: for a combination that is not allowed.
        """

    @classmethod
    def notes(cls, config: RunConfig, settings: Any) -> list[str]:
        """Return what a run's heading says of its rounds, in a few words each."""
        return []

    def check_shared(self, shared: SharedSettings) -> None:
        """Check the settings that all strategies share, when the object is made.

        Raises:
            ConfigError: for one that does not go with the algorithm's own.
        """

    def check_model(self, names: Sequence[str]) -> None:
        """Check that the strategy can train a model with parameters and buffers of these names.

        Raises:
            ConfigError: otherwise; names what it cannot train.
        """
        if self.refuses_batch_norm:
            refuse_batch_norm(self.name, names)

    def pool(self, round: Round) -> list[Member]:
        """Return the clients that a round may ask, before it begins; the sampling orders them."""
        return round.members.available()

    def begin(self, round: Round) -> None:
        """Begin a round; what it gathers besides the sum of models goes into ``round.carry``."""

    def wave(self, round: Round, members: Sequence[Member]) -> Instructions:
        """Return what the next clients are told besides the model and the settings."""
        return NOTHING

    def weight(self, reply: Reply) -> float:
        """Return a joined client's aggregation weight, at least 0.

        Raises:
            Refused: if what the client claims is not allowed.
        """
        return 1.0

    def add(self, round: Round, reply: Reply) -> None:
        """Take in one joined reply, as it comes; ``reply.counts`` of its weight counts.

        Raises:
            Refused: if what the client claims is not allowed; nothing is changed.
        """
        weight = checked_weight(self.weight(reply))
        round.sum.add(reply.arrays, weight * reply.counts)
        round.claimed_weight += weight

    def update(self, round: Round) -> Model:
        """Return the next global model from at least one reply: by default the weighted average."""
        if not round.sum.weight:
            return round.model
        return round.sum.combine(keep=0.0, scale=1.0 / round.sum.weight)

    def finish(self, round: Round) -> Model | Kept:
        """Return the next global model; `KEEP_MODEL` where it stays."""
        return self.update(round) if round.sum.count else KEEP_MODEL

    def summarise(self, round: Round, answers: Sequence[tuple[Member, Mapping[str, Any]]]) -> dict[str, float]:
        """Return what the answers to a round's EVALUATE say together: numbers for the history."""
        return summarise(answers, round.metric, round.other_metrics)

    def carried(self) -> dict[str, Any]:
        """Return what the algorithm carries from round to round.

        By name: a dict of numbers and texts, or lists of them; or a dict of NumPy arrays. So a count of the author's
        is ``{"steps": {"count": 3}}``.
        """
        return {}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up what `carried` returned; an empty dict is left out."""


def carried_by(algorithm: Algorithm) -> Mapping[str, Any]:
    """Return what an algorithm carries from round to round.

    Raises:
        ConfigError: its `carried` returns no dict.
    """
    carried: object = algorithm.carried()
    if not isinstance(carried, Mapping):
        returned = one_line(repr(carried), 80)
        raise ConfigError(f"strategy {algorithm.name} returned {returned} from carried(): a dict is allowed")
    return carried


def check_influence(kind: type[Algorithm], influence: str, aggregation: str) -> None:
    """Check that a round of an algorithm can be bounded, and averaged, as two settings say.

    Raises:
        ConfigError: names the setting.
    """
    if influence == "bounded" and kind.unbounded:
        raise ConfigError(
            f"influence = 'bounded' is not allowed with strategy = '{kind.name}': {kind.unbounded} (off)"
        )
    if aggregation != "mean" and not kind.averages:
        raise ConfigError(
            f"aggregation = '{aggregation}' is not allowed with strategy = '{kind.name}': its rounds weight "
            "clients, or do more than average their models (mean)"
        )
