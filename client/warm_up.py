"""Training and measurements by which a requirement is made before the first round."""

from collections.abc import Iterator

import numpy as np

from client.learner import Learner
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalTrainingSettings
from fedappeal.core.requirement import LOOKS
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.packing import Arrays


class LocalWarmUp:
    """A `fedappeal.core.requirement.WarmUp` on one client's data, from w_0."""

    def __init__(self, participant: Learner, initial: Arrays) -> None:
        self._participant = participant
        self._initial = initial

    def train(self, steps: int, learning_rate: float) -> Arrays:
        """See `WarmUp`."""
        asked = {"learning-rate": learning_rate, "local-steps": steps}
        training = LocalTrainingSettings.of(asked, self._participant.config.as_config())
        return self._participant.trained(self._initial, SGD(), training, 0, "warm-up")

    def path(self, steps: int, learning_rate: float) -> Iterator[Arrays]:
        """See `WarmUp`."""
        client, arrays = self._participant, self._initial
        asked = {"learning-rate": learning_rate, "local-steps": steps}
        training = LocalTrainingSettings.of(asked, client.config.as_config())
        if client.guard is not None:  # the limit is on the whole training
            client.guard.check_training(SGD(), training, client.data.counts[0])
        drawn = Minibatches(
            client.config.seed, client.client_id, 0, client.data.counts[0], steps, training.batch_size, "warm-up"
        )
        yield arrays
        for number, batches in enumerate(np.array_split(np.asarray(drawn), min(LOOKS, steps)), 1):
            stretch = training.model_copy(update={"local_steps": len(batches)})
            arrays = client.trained(arrays, SGD(), stretch, 0, f"warm-up {number}", batches)
            yield arrays

    def train_loss(self, arrays: Arrays) -> float:
        """See `WarmUp`."""
        return self._participant.measured(arrays, keys.TRAIN_SPLIT, purpose="requirement").loss

    @property
    def holds_out(self) -> bool:
        """See `WarmUp`."""
        return self._participant.judged_split == keys.HELD_OUT_SPLIT

    def judged_loss(self, arrays: Arrays) -> float:
        """See `WarmUp`."""
        return self._participant.measured(arrays, self._participant.judged_split, purpose="requirement").loss

    def test_score(self, arrays: Arrays) -> float:
        """See `WarmUp`."""
        return self._participant.measured(arrays, keys.TEST_SPLIT).score
