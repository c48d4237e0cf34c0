"""A round that a client has joined: paid for, and then trained."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from client.learner import Job, check_rule
from client.limits.privacy import Protection
from client.participant import Participant
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.requirement import Measured
from fedappeal.protocol.packing import Arrays, model_of
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.training import LocalTrainingSettings


def check_sent(participant: Participant, rule: LocalRule, training: LocalTrainingSettings) -> None:
    """Check that a client can train by a rule, and may send what comes of it.

    Raises:
        ConfigError: its learner cannot, its owner's limits do not let it, or it cannot be protected as they ask.
    """
    check_rule(participant.learner, rule)
    if participant.guard is not None:
        participant.guard.check_sent(rule, training, participant.examples, bool(participant.node.data))
    Protection.of(participant.config, participant.node).check(rule, participant.learner.expects)


@dataclass
class JoinedRound:
    """One TRAIN that a client joined; see `fedappeal.core.local_rule.TrainingJob`.

    It is checked, and what the client's goodwill pays for it is written down, before it can train anything.

    Attributes:
        participant: the client.
        pays: content hash of the model that its goodwill pays for; empty: nothing is paid.
        rule: the local rule.
        content: the message's records.
    """

    participant: Participant
    pays: str
    rule: LocalRule
    content: RecordDict
    arrays: Arrays
    server_round: int
    run_key: str
    training: LocalTrainingSettings
    told: Mapping[str, Scalar]
    measured: Measured

    def __post_init__(self) -> None:
        client, learner = self.participant, self.participant.learner
        self.seed, self.client_id, self.store = client.config.seed, client.client_id, client.store
        self.examples, self.device, self.model = client.examples, learner.device, learner.model
        self.trainable = list(learner.trainable)
        self.rule.check(self.training)
        check_sent(client, self.rule, self.training)
        if self.pays:
            client.memory(self.run_key).pay(self.server_round, self.pays)

    def received(self, name: str) -> Arrays:
        """Return a further model-shaped ArrayRecord of the message.

        Raises:
            ValueError: if there is none.
        """
        return self.participant.learner.expects.unpack(model_of(self.content, name))

    def train(self, rule: LocalRule, start: Arrays | None = None) -> Arrays:
        """Return the local model that a rule trains.

        Training begins at the model that was sent, with the arrays of ``start`` in place of its own.
        """
        client, learner = self.participant, self.participant.learner
        if learner.trains_personal and not rule.keeps_personal:
            raise ConfigError(
                f"share = '{learner.share}' is not allowed with local-rule = '{rule.name}': all trained parameters "
                "have to travel"
            )
        arrays = {**self.arrays, **start} if start else self.arrays
        job = Job(rule, self.training, "batches", self.server_round)
        trained = learner.train(arrays, client.limited(job))
        client.keep(trained, self.run_key, self.server_round)
        return {name: trained[name] for name in learner.expects.names}

    def gradient(self, arrays: Arrays, batch: NDArray[np.int64] | None) -> Arrays:
        """Return the gradient of a model's mean training loss.

        It is over all examples where ``batch`` is None.
        """
        guard = self.participant.guard
        if guard is not None and guard.deadline is not None:
            guard.deadline.check()
        return self.participant.learner.gradient(arrays, batch)

    def pack(self, arrays: Arrays) -> ArrayRecord:
        """Return arrays as a record, in the form in which the model was sent."""
        layout = self.participant.learner.expects
        sent = {name: arrays[name] for name in layout.names}
        return layout.pack(sent) if layout.is_packed(model_of(self.content)) else layout.named(sent)
