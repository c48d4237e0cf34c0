"""Local training before a model is judged, and the measurements of the latest model."""

from typing import NamedTuple

from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings
from fedappeal.core.measured import Evaluation
from fedappeal.core.plugins import PluginSettings


class Adaptation(NamedTuple):
    """Local training before a model is judged.

    Attributes:
        rule: the local rule's class and settings.
        training: settings that all rules share.
        purpose: what its minibatches and noise are drawn for.
    """

    rule: tuple[type[LocalRule], PluginSettings]
    training: LocalTrainingSettings
    purpose: str

    @classmethod
    def of(cls, rule: LocalRule, training: LocalTrainingSettings, purpose: str) -> "Adaptation":
        """Return the adaptation by a rule."""
        return cls((type(rule), rule.settings), training, purpose)


class JudgedModel(NamedTuple):
    """The latest model that a client judged, and what it measured of it.

    Attributes:
        model: its content hash.
        server_round: the round of the noise, where it was measured with noise; else 0.
        evaluations: by split, and by the local training before it.
    """

    model: str
    server_round: int
    evaluations: dict[str, Evaluation]
