"""What few algorithms decide on clients: privacy, personal models, priority, attacks.

`fedappeal.core.algorithm.ClientSide` has all of it, each with a default.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedappeal.core.local_rule import LocalRule
from fedappeal.core.measured import Measured
from fedappeal.core.store import Store
from fedappeal.settings.config import Scalar

if TYPE_CHECKING:
    from numpy.typing import NDArray

Claims = Mapping[str, float]
"""What a joined client tells the server about itself, by key."""
Adapting = tuple[LocalRule, Mapping[str, Scalar]]
"""Local training before a model is judged: a rule, and training settings that go before the run's."""


class Privacy:
    """What an algorithm cannot do without of what clients may keep to themselves."""

    needs_losses: ClassVar[bool] = False
    """Whether the server needs the clients' losses."""
    needs_weight: ClassVar[bool] = False
    """Whether the server needs what `report` returns; True in a class that writes `report`, unless that says."""
    needs_appeal: ClassVar[bool] = False
    """Whether the server needs to know which clients' requirement the model meets."""


class PersonalModels:
    """How clients use a model that they are sent: local training before it is judged, or a model of their own."""

    def tuning_steps(self) -> int:
        """Return the fine-tuning steps before a client judges the model that it is sent."""
        return 0

    def adaptation(self) -> Adapting | None:
        """Return how a client adapts the model before a second evaluation; None: there is none."""
        return None

    def use(self) -> Adapting | None:
        """Return the local training after which a client would use a model; by default `adaptation`.

        Clients that judge by held-out data judge the model after it.
        """
        return self.adaptation()

    def own_model(self, store: Store, run_key: str, before: int) -> "Mapping[str, NDArray[Any]]":
        """Return a client's own model, by which it is evaluated a second time; empty: none.

        Args:
            store: the client's memory.
            run_key: which run.
            before: the model is that from before this round.
        """
        return {}

    @property
    def has_own_models(self) -> bool:
        """Whether clients keep a model of their own."""
        return type(self).own_model is not PersonalModels.own_model

    def evaluation_settings(self) -> dict[str, Scalar]:
        """Return what EVALUATE carries besides the model, the round and the general settings."""
        return {}


class Priority:
    """Which clients an algorithm serves first."""

    def granted(self, told: Mapping[str, Scalar]) -> bool | None:
        """Return whether a message grants a client priority; None: it does not say.

        Args:
            told: what the message tells about the strategy, by key.
        """
        return None

    def asks_priority(self, client: int, clients: int) -> bool:
        """Whether client number ``client`` of ``clients`` asks for priority by default."""
        return False


class _Reporting(Protocol):
    def report(self, measured: Measured) -> Claims: ...


class Attacks:
    """How an attacker gains weight, in experiments."""

    weight_claim: ClassVar[str] = ""
    """The claim that decides a client's weight, which an attacker makes up; empty: none does."""

    def false_report(self: _Reporting, measured: Measured, pretended: Measured) -> Claims:
        """Return what an attacker tells that pretends another measurement.

        Args:
            measured: what the client measured.
            pretended: what it pretends.
        """
        return self.report(pretended)
