"""What a participant holds: a client's data and model, and how they are trained and measured.

A `Participant` decides; its learner learns, and knows nothing of requirements, policies or messages. Ours is
`client.training.task_learner.TaskLearner`. Another one derives from `Learner`, and writes three methods.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client.limits.guard import Deadline
from client.limits.room import Room
from client.settings import NodeSettings
from client.training.sgd import SGD
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.requirement import LOOKS, Evaluation, Look
from fedappeal.protocol import keys
from fedappeal.protocol.metric import ACCURACY
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.trained.card import ModelCard

log = logging.getLogger("fedappeal.client")

SPLITS = "splits"
"""Measures on training, held-out and test data apart; else `measure` has one answer for all."""
HALVES = "halves"
"""Measures on the halves of its held-out data, too: `fedappeal.protocol.keys.HALVES`."""
RULES = "rules"
"""Trains by any local rule; else by `train`'s own, and the job tells steps and learning rate."""
RECORDS = "records"
"""Trains for rules that send more, or something else, than one trained model."""
GRADIENT = "gradient"
"""Has `gradient`."""
PERSONAL = "personal"
"""Has arrays that stay with the client: `personal`."""
PATH = "path"
"""Has `path`."""


class NotReady(Exception):
    """The client's requirement takes longer than the message allows; one line for its owner."""


@dataclass(frozen=True, eq=False)
class Job:
    """One local training.

    Attributes:
        rule: the local rule.
        training: how much, with which step.
        purpose: what its minibatches and noise are drawn for.
        server_round: the round that it is for; 0: none.
        batches: the minibatches, rows of the training examples, one row a step; None: drawn.
        deadline: to be checked before each step; None: there is none.
    """

    rule: LocalRule
    training: LocalTrainingSettings
    purpose: str
    server_round: int = 0
    batches: NDArray[np.int64] | None = None
    deadline: Deadline | None = None

    @cached_property
    def name(self) -> str:
        """The training as a text, as memories of simulated runs have had it since before there were jobs."""
        rule = type(self.rule), self.rule.settings
        return f"Adaptation(rule={rule!r}, training={self.training!r}, purpose={self.purpose!r})"


class Sent(NamedTuple):
    """Where a model comes from.

    Attributes:
        model: its content hash, if other clients have been sent the same; else empty.
        server_round: in which round.
    """

    model: str
    server_round: int = 0


class Learner:
    """Base of learners: derive from it, and write `examples`, `measure` and `train`.

    Attributes:
        can: what else it offers: `SPLITS` and so on.
        expects: layout of the model's arrays that travel.
        fingerprint: of its task, compared with the run's where that has one.
        data_fingerprint: of the client's own data, with which its requirement changes.
        holds_out: whether it holds data out to judge models by.
        halves: whether it chooses by one half of them, and judges by the other; False where they are too few.
        personal: names of the arrays that stay with the client.
        trains_personal: whether some of these are trained.
        share: the setting by which they stay.
        precision: in which it measures.
        model: where it has `RULES`: a model for its structure; its values do not last.
        device: the same: where it trains.
        trainable: the same: names of the trainable parameters that travel, in the model's order.
    """

    can: frozenset[str] = frozenset()
    expects: Layout
    fingerprint: str = ""
    data_fingerprint: str = ""
    holds_out: bool = False
    halves: bool = False
    personal: Sequence[str] = ()
    trains_personal: bool = False
    share: str = "all"
    precision: str = "float32"
    model: Any = None
    device: Any = None
    trainable: Sequence[str] = ()

    @property
    def judged_split(self) -> str:
        """The split on which its client compares models with its requirement."""
        return keys.HELD_OUT_SPLIT if self.holds_out else keys.TRAIN_SPLIT

    @property
    def judged_parts(self) -> Sequence[str]:
        """The same in its halves, where the client chooses by one and judges by the other."""
        return keys.HALVES if self.halves else (self.judged_split,)

    def examples(self, split: str) -> int:
        """Return the number of examples of a split: ``train``, ``held-out``, one of its halves, or ``test``."""
        raise NotImplementedError

    def measure(self, arrays: Arrays, split: str, sent: Sent | None = None) -> Evaluation:
        """Return a model's loss and metrics.

        Args:
            arrays: the model.
            split: on what; without `SPLITS` it may be passed over.
            sent: where it comes from; None: it is the client's own.
        """
        raise NotImplementedError

    def train(self, arrays: Arrays, job: Job) -> Arrays:
        """Return the model that local training makes of another, with the same names.

        Raises:
            NotReady: of training for the requirement: it goes on with a later message.
        """
        raise NotImplementedError

    def initial(self, names: Sequence[str]) -> Arrays:
        """Return arrays of w_0.

        Raises:
            ConfigError: only the server knows it.
        """
        raise ConfigError("this client has not been told the initial model: start it again")

    def follows(self, rule: LocalRule) -> bool:
        """Whether it trains by a local rule other than SGD, though not by any: without `RULES`."""
        return False

    def told(self) -> Mapping[str, Any]:
        """Return numbers that the reply to a joined round tells besides ours, which go before them."""
        return {}

    def gradient(self, arrays: Arrays, batch: NDArray[np.int64] | None) -> Arrays:
        """Return the gradient of a model's mean training loss.

        It is over all examples where ``batch`` is None.
        """
        raise NotImplementedError

    def path(self, arrays: Arrays, job: Job, stretches: int) -> Iterator[Arrays]:
        """Yield the models after each of some stretches of a training."""
        raise NotImplementedError

    def card(self, config: RunConfig, **facts: Any) -> ModelCard:
        """Return the card of a model that is kept.

        Args:
            config: the run's settings.
            facts: fields of this model; and ``names``: of the arrays that are kept.
        """
        del facts["names"]
        nothing: dict[str, Any] = {
            "settings": {},
            "input_shape": (),
            "input_dtype": "",
            "normalisation": None,
            "num_classes": 0,
        }
        about = {"task": config.task, "fingerprint": self.fingerprint, "model": config.model, "class_names": ()}
        return ModelCard(**{"metric": ACCURACY, **ModelCard.history(config), **nothing, **about, **facts})


class Learners:
    """Makes the learners of one process's clients.

    Attributes:
        simulated: whether clients are a simulator's, whose data are held anyway: no participant is let go.
        room: the owner's, which is asked before anything large is loaded; None: there are no limits.
    """

    simulated = False
    room: Room | None = None

    def __init__(self, make: Callable[[RunConfig, NodeSettings, str], Learner]) -> None:
        """Begin.

        Args:
            make: returns a client's learner, by the run's settings, the owner's and the client-id.
        """
        self._make = make

    def __call__(self, config: RunConfig, node: NodeSettings, client_id: str) -> Learner:
        """Return a client's learner.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or do not allow what it names.
        """
        return self._make(config, node, client_id)

    def strategy_of(self, config: RunConfig) -> ClientSide | None:
        """Return a strategy in place of the one that a run's settings name.

        None where that one holds.
        """
        return None

    def clear(self) -> None:
        """Let go of what is shared; learners that are kept have theirs still."""


def check_offered(learner: Learner, what: str, needs: str) -> None:
    """Check that a learner offers what a setting needs.

    Raises:
        ConfigError: it does not; one line.
    """
    if needs not in learner.can:
        offers = ", ".join(sorted(learner.can)) or "none"
        raise ConfigError(f"{what} is not allowed for this client: its learner has no '{needs}' (it has: {offers})")


def check_rule(learner: Learner, rule: LocalRule) -> None:
    """Check that a learner can train by a local rule; errors as `check_offered`."""
    what = f"local-rule = '{rule.name}'"
    for needs, needed in (
        (RULES, type(rule) is not SGD and not rule.sends_update and not learner.follows(rule)),
        (RECORDS, type(rule).reply is not LocalRule.reply and not rule.sends_update),
        (GRADIENT, rule.asks_gradients()),
    ):
        if needed:
            check_offered(learner, what, needs)


@dataclass(frozen=True)
class LocalWarmUp:
    """A `fedappeal.core.requirement.WarmUp` on one client's data.

    Attributes:
        learner: the client's.
        config: the run's settings.
        initial: w_0, from which it trains.
        limited: returns a job that the owner's limits allow, with their deadline, or raises LimitReached.
        most_steps: the owner's ``max-steps``; 0: any number.
    """

    learner: Learner
    config: RunConfig
    initial: Arrays
    limited: Callable[[Job], Job] = lambda job: job
    most_steps: int = 0

    def _job(self, steps: int, learning_rate: float) -> Job:
        settings: Mapping[str, Scalar] = {"learning-rate": learning_rate, "local-steps": steps}
        return self.limited(Job(SGD(), self.config.training.changed_by(settings), "warm-up"))

    @property
    def federated_steps(self) -> int:
        """The steps that the client would train in the run, for `WarmUp`.

        At most the owner's ``max-steps``; the log says where that is fewer.
        """
        config, most = self.config, self.most_steps
        share = config.resolved_clients_per_round / config.clients
        a_round = config.training.steps(self.learner.examples(keys.TRAIN_SPLIT))
        steps = round(config.scheduled_rounds * a_round * share)
        if 0 < most < steps:
            log.info("solo.effort = equal would take %d steps: this client's max-steps = %d", steps, most)
        return max(1, min(steps, most or steps))

    def train(self, steps: int, learning_rate: float) -> Arrays:
        """Return the model that the client trains alone from w_0."""
        return self.learner.train(self.initial, self._job(steps, learning_rate))

    def path(self, steps: int, learning_rate: float) -> Iterator[Arrays]:
        """Yield w_0 and the model after each stretch of training, as `WarmUp` asks.

        There are `LOOKS` stretches, or one a step where the steps are fewer.
        """
        what = f"judge-on = {self.config.judge_on} with a requirement by training alone"
        check_offered(self.learner, what, PATH)
        job = self._job(steps, learning_rate)
        yield self.initial
        yield from self.learner.path(self.initial, job, min(LOOKS, steps))

    def train_loss(self, arrays: Arrays) -> float:
        """Return a model's loss on the client's training data."""
        return self.learner.measure(arrays, keys.TRAIN_SPLIT).loss

    @property
    def holds_out(self) -> bool:
        """Whether the client judges models by held-out data."""
        return self.learner.holds_out

    def look(self, arrays: Arrays) -> Look:
        """Return a look at a model on what the client judges by."""
        learner, parts = self.learner, self.learner.judged_parts
        return Look([learner.measure(arrays, part) for part in parts], [learner.examples(part) for part in parts])

    def judged_loss(self, arrays: Arrays) -> float:
        """Return a model's loss on the split by which the client judges."""
        return self.learner.measure(arrays, self.learner.judged_split).loss

    def test_score(self, arrays: Arrays) -> float:
        """Return a model's value of the task's metric on the client's test data."""
        return self.learner.measure(arrays, keys.TEST_SPLIT).score


def stretch(job: Job, number: int, batches: NDArray[np.int64]) -> Job:
    """Return one stretch of a job: these minibatches, with noise of its own."""
    training = job.training.model_copy(update={"local_steps": len(batches)})
    return replace(job, training=training, purpose=f"{job.purpose} {number}", batches=batches)
