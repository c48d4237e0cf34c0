"""The owner's switches of `NodeSettings` on what replies may tell.

docs/privacy.md says what a server still works out under each switch, measured by the attacks in tests/hostile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig

if TYPE_CHECKING:
    from client.settings import NodeSettings
    from fedappeal.core.algorithm import ClientSide

V = TypeVar("V")

_LOSSES = frozenset({keys.LOSS, keys.TRAIN_LOSS, keys.ADAPTED_LOSS})
_APPEALS = frozenset({keys.APPEALED, keys.APPEALED_TRAIN, keys.APPEALED_HELD_OUT, keys.SERVED})
_OF_TRAIN_SPLIT = frozenset({keys.APPEALED_TRAIN, keys.APPEALED_HELD_OUT, keys.TRAIN_LOSS})
_APPEAL = "its strategy needs to know whether the model meets a client's requirement"
_ON_TRAINING = "its strategy asks how a model does on the training examples"


@dataclass(frozen=True)
class Disclosure:
    """Permission of each kind of content in a client's replies.

    Attributes:
        loss: losses.
        weight: what the strategy asks of a joined client besides the model.
        appeal: whether a model meets the requirement, and what follows from that.
        evaluation: how a model does: loss, metrics and what follows.
        train_split: the same on the training examples.
    """

    loss: bool
    weight: bool
    appeal: bool
    evaluation: bool
    train_split: bool

    @classmethod
    def of(cls, config: RunConfig, node: "NodeSettings") -> Self:
        """Return what the run asks for and the owner allows."""
        return cls(
            loss=config.report_loss and node.report_loss,
            weight=node.report_weight,
            appeal=node.report_appeal,
            evaluation=node.answer_evaluate,
            train_split=node.answer_train_split,
        )

    def check_run(self, config: Mapping[str, Any]) -> None:
        """Check that a run can do without what stays here.

        Args:
            config: the roll call's.

        Raises:
            ConfigError: one line for the server: the run cannot.
        """
        needs = (keys.NEEDS_LOSS, keys.NEEDS_WEIGHT, keys.NEEDS_APPEAL, keys.NEEDS_TRAIN_SPLIT)
        self._check(*(bool(config.get(key, 0)) for key in needs))

    def check_train(self, algorithm: "ClientSide") -> None:
        """Check that a strategy can do without what stays here, before its TRAIN is answered in any way.

        Raises:
            ConfigError: one line for the server: it cannot.
        """
        self._check(algorithm.needs_losses, algorithm.needs_weight, algorithm.needs_appeal)

    def check_split(self, split: str) -> None:
        """Check that an EVALUATE may be answered.

        Raises:
            ConfigError: one line for the server: it asks about training examples.
        """
        self._check(train_split=split in (keys.TRAIN_SPLIT, keys.HELD_OUT_SPLIT))

    def of_evaluation(self, metrics: Mapping[str, V]) -> dict[str, V]:
        """Return what of an EVALUATE's answer may leave the device."""
        if not self.evaluation:
            return {keys.NUM_EXAMPLES: metrics[keys.NUM_EXAMPLES]}
        hidden: set[str] = set()
        if not self.loss:
            hidden |= _LOSSES
        if not self.train_split:
            hidden |= _OF_TRAIN_SPLIT
        if not self.appeal:
            # The preferred model's figure is the global model's if and only if that one appeals: it tells as much.
            hidden |= _APPEALS | {key for key in metrics if key.startswith(keys.PREFERRED)}
        return {key: value for key, value in metrics.items() if key not in hidden}

    def _check(
        self, loss: bool = False, weight: bool = False, appeal: bool = False, train_split: bool = False
    ) -> None:
        """Compare what a run needs with what may be told."""
        for setting, needed, allowed, reason in (
            ("report-loss", loss, self.loss, "its strategy needs the clients' losses"),
            ("report-weight", weight, self.weight, "its strategy needs what a client tells besides its model"),
            ("report-appeal", appeal, self.appeal, _APPEAL),
            ("answer-evaluate", train_split, self.evaluation, _ON_TRAINING),
            ("answer-train-split", train_split, self.train_split, _ON_TRAINING),
        ):
            if needed and not allowed:
                raise ConfigError(f"{setting} = False is not allowed in this run: {reason}")
