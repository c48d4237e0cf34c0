"""Decisions of few algorithms on the server: a survey, bounded influence.

`strategies.rounds.algorithm.Algorithm` has both, each with defaults.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fedappeal.settings.config import ConfigError, RunConfig
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.reply import Reply
from strategies.rounds.round import Round


class Survey:
    """A question to some clients before any client trains: how the model does on their training examples."""

    surveys: ClassVar[bool] = False
    """Whether there is one; True in a class that writes `survey`."""

    @classmethod
    def needs_train_split(cls, settings: Any) -> bool:
        """Return whether the server needs the clients' answers about their training examples."""
        return cls.surveys

    def survey(self, round: Round, order: Sequence[Member]) -> Sequence[Member]:
        """Return the clients that are asked.

        Args:
            round: the round.
            order: the clients that the round may ask, in order.
        """
        return []

    def surveyed(self, round: Round, member: Member, metrics: Mapping[str, Any]) -> None:
        """Take in one client's answer: loss and metrics on its training data.

        Raises:
            Refused: if it is not allowed.
        """


class Influence:
    """One client's influence on the model, and its bounds: ``influence``, ``aggregation``."""

    name: ClassVar[str]
    averages: ClassVar[bool] = False
    """Whether a round's result is an average of its models, in whose place a median may stand."""
    unbounded: ClassVar[str] = ""
    """Reason why one client's influence cannot be bounded; empty: `influence = bounded` is allowed."""
    still_open: ClassVar[str] = ""
    """By what one client still has influence where it is bounded; empty: by nothing but its bounded share."""
    may_refuse: ClassVar[bool] = False
    """Whether the server may reject a joined client's update."""

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
    def bounds_lack(cls, config: RunConfig, settings: Any) -> str:
        """Return what `influence = bounded` lacks where clients are not the runtime's own; empty: nothing."""
        return ""

    def moves_model(self, member: Member) -> bool:
        """Whether a round with this client alone could move the model."""
        return True

    def log_weight(self, round: Round, reply: Reply) -> float | None:
        """Return the logarithm of the weight by which clients are compared; None: of the aggregation weight.

        Raises:
            Refused: if what the client claims is not allowed.
        """
        return None

    def update_unit(self, round: Round, reply: Reply) -> float:
        """Return how long a client's update may be beside another's, above 0."""
        return 1.0
