"""The settings of local training that every local rule shares."""

from collections.abc import Mapping

from fedappeal.settings.model import Count, CountOrZero, Positive
from fedappeal.settings.training import LearningRate, LocalSteps


class LocalTrainingSettings(LocalSteps, LearningRate):
    """Settings of one local training, under the same keys in messages and runs."""

    learning_rate: Positive
    batch_size: Count
    local_steps: CountOrZero = 0

    @classmethod
    def of(cls, *sources: Mapping[str, object]) -> "LocalTrainingSettings":
        """Take the settings from the first source that has each of them.

        Raises:
            ConfigError: where one is missing or not allowed.
        """
        merged: dict[str, object] = {}
        names = cls.keys()
        for source in reversed(sources):
            merged |= {key: source[key] for key in names if key in source}
        return cls.parse(merged)

    def steps(self, num_examples: int) -> int:
        """Number of local steps: the setting, or as many as the epochs hold."""
        if self.local_steps:
            return self.local_steps
        return self.local_epochs * -(-num_examples // self.batch_size)
