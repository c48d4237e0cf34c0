"""Settings of an algorithm whose server has to know how many local steps its clients take."""

from collections.abc import Mapping

from fedappeal.core.algorithm import StrategySettings
from fedappeal.core.local_rule import LocalTrainingSettings
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import Count, CountOrZero

FROM_RUN: Mapping[str, str] = {key.replace("-", "_"): key for key in ("local-steps", "local-epochs", "batch-size")}
"""The run's settings that stand in for these."""


class CountedSteps(StrategySettings):
    """How many local steps clients take: as the run says, where it is not set."""

    local_steps: CountOrZero | None = None
    """local steps; 0: by epochs; not set: the run's"""
    local_epochs: CountOrZero | None = None
    """epochs; not set: the run's"""
    batch_size: Count | None = None
    """examples a step; not set: the run's"""

    def check_counted(self, strategy: str) -> None:
        """Check that the number of steps is known.

        Raises:
            ConfigError: names the setting, under the strategy's name.
        """
        if self.local_steps is None and self.local_epochs is None:
            raise ConfigError(
                f"{strategy}.local-steps is missing: how many steps clients take, or {strategy}.local-epochs"
            )
        if not self.local_steps and not self.local_epochs:
            raise ConfigError(f"{strategy}.local-steps = 0 is not allowed where {strategy}.local-epochs = 0")
        if not self.local_steps and self.batch_size is None:
            raise ConfigError(f"{strategy}.batch-size is missing: steps of an epoch follow from it")

    def steps(self, examples: int) -> int:
        """Return the local steps of a client with this many training examples."""
        counted = {"local-steps": self.local_steps or 0, "local-epochs": self.local_epochs or 0}
        return LocalTrainingSettings.of({"learning-rate": 1.0, "batch-size": self.batch_size or 1, **counted}).steps(
            examples
        )
