"""What replies may tell: the run's settings and the owner's switches.

docs/privacy.md says what a server still works out under each switch of `Disclosure`, measured by the attacks in
tests/hostile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from client.settings import NodeSettings
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig

_LOSSES = frozenset({keys.LOSS, keys.TRAIN_LOSS, keys.ADAPTED_LOSS})
_OF_TRAIN_SPLIT = frozenset({keys.APPEALED_TRAIN, keys.APPEALED_HELD_OUT, keys.TRAIN_LOSS})
_APPEAL = "its strategy needs to know whether the model meets a client's requirement"
_ON_TRAINING = "its strategy asks how a model does on the training examples"
V = TypeVar("V")


@dataclass(frozen=True)
class Disclosure:
    """Permission of each kind of content in a client's replies.

    Attributes:
        run: the run's settings.
        node: the owner's.
    """

    run: RunConfig
    node: NodeSettings

    @property
    def loss(self) -> bool:
        """Whether the run asks for losses, and the owner allows them."""
        return self.run.report_loss and self.node.report_loss

    def check_run(self, config: Mapping[str, Any]) -> None:
        """Check that a run can do without what stays here.

        Args:
            config: the roll call's.

        Raises:
            ConfigError: one line for the server: the run cannot.
        """
        needs = (keys.NEEDS_LOSS, keys.NEEDS_WEIGHT, keys.NEEDS_APPEAL, keys.NEEDS_TRAIN_SPLIT)
        self.check(*(bool(config.get(key, 0)) for key in needs))

    def of_evaluation(self, metrics: Mapping[str, V]) -> dict[str, V]:
        """Return what of an EVALUATE's answer may leave the device."""
        if not self.node.answer_evaluate:
            return {keys.NUM_EXAMPLES: metrics[keys.NUM_EXAMPLES]}
        hidden: set[str] = set()
        if not self.loss:
            hidden |= _LOSSES
        if not self.node.answer_train_split:
            hidden |= _OF_TRAIN_SPLIT
        if not self.node.report_appeal:
            # The preferred model's figure is the global model's if and only if that one appeals: it tells as much.
            hidden |= {key for key in metrics if key in keys.APPEALS or key.startswith(keys.PREFERRED)}
        return {key: value for key, value in metrics.items() if key not in hidden}

    def check(
        self, loss: bool = False, weight: bool = False, appeal: bool = False, train_split: bool = False
    ) -> None:
        """Check that a run, or a message of it, needs nothing that stays here.

        Raises:
            ConfigError: one line for the server: it does.
        """
        node = self.node
        for setting, needed, allowed, reason in (
            ("report-loss", loss, self.loss, "its strategy needs the clients' losses"),
            ("report-weight", weight, node.report_weight, "its strategy needs what a client tells besides its model"),
            ("report-appeal", appeal, node.report_appeal, _APPEAL),
            ("answer-evaluate", train_split, node.answer_evaluate, _ON_TRAINING),
            ("answer-train-split", train_split, node.answer_train_split, _ON_TRAINING),
        ):
            if needed and not allowed:
                raise ConfigError(f"{setting} = False is not allowed in this run: {reason}")
