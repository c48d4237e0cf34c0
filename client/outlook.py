"""Measurements of a policy that looks ahead: the model that was sent, and a model trained alone from it."""

from dataclasses import dataclass

from client.participant import Participant
from fedappeal.core.measured import Evaluation
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays


@dataclass(frozen=True)
class ModelOutlook:
    """The outlook of one TRAIN; see `fedappeal.core.policy.Outlook`.

    Attributes:
        participant: the client.
        arrays: the model that was sent, with what is the client's own.
        model: its content hash.
    """

    participant: Participant
    arrays: Arrays
    model: str

    def held_out(self) -> Evaluation:
        """See `Outlook`."""
        return self.participant.judge(self.arrays, self.model, keys.TEST_SPLIT)

    def alone(self, rounds: int) -> Evaluation:
        """See `Outlook`; by the run's steps and learning rate, without momentum and weight decay."""
        examples = self.participant.data.counts[0]
        steps = rounds * self.participant.equipment.run_training.steps(examples)
        return self.participant.judge(self.arrays, self.model, keys.TEST_SPLIT, steps)
