r"""ADA-GD's strategy: every client's full-batch gradient in every round, one step a round.

"On the Effect of Defection in Federated Learning and How to Prevent It", anonymous, under review. Algorithm 1, whose
mathematics is in `strategies.adagd.algorithm`. A joined client sends its loss F_m of the model that was sent, and in
place of a model the gradient of that loss.

With ``form = local``, our own and beyond the theorem, it sends what its local steps take off the model instead. This
is the form of a run that sets nothing that the paper's form alone has: one step a round, on one gradient, is no match
for the local steps that clients of other strategies take.

With ``influence = bounded`` the gradients in the sums of cases 1 and 2 have bounds. Whether a client is in D, and
what the step is orthogonal to, follow from its gradient as it was sent. So the paper's guarantee that no client
leaves (Theorem 1) holds as it stands: it needs a step of at most eta, and right angles to the gradients in D. The
descent is that of the bounded sum. The bounds say nothing of D: a client that claims to be in it has its way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule, TrainingJob
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy, Situation
from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, array_record, view
from fedappeal.settings.config import ConfigError, Count, CountOrZero, Positive, RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from strategies.adagd.algorithm import Gathered
from strategies.projection import Vector, norm
from strategies.rounds.algorithm import Influence
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import KEEP_MODEL, Kept, Model, Reply, Round
from strategies.rounds.shared import FROM_RUN, CountedSteps, SharedSettings
from strategies.rounds.strategy import Claims, Strategy

PAPER, LOCAL = "one-gradient", "local"
"""The forms: one gradient a round, or the run's local steps."""


class Gradient(LocalRule):
    """The gradient of the client's loss, in place of a model: Algorithm 1, line 3.

    F_m is the mean loss over all training examples of the model w that was sent, in evaluation mode (no dropout), so
    that loss and gradient are of the same function and server and client predict alike. Two settings leave the
    theory, which knows exact gradients and one step only (the paper's experiments do too):

    * ``gradient-batch`` > 0: each gradient is of that many examples;
    * ``gradient-steps`` = K > 1: the client takes K local steps ``w <- w - learning-rate * g`` and sends
      ``(w_0 - w_K) / (K * learning-rate)``, the mean of the K gradients on its way.

    With ``form = local`` the client trains by SGD, as the run says, and sends ``w_0 - w_K``.
    """

    knows_momentum = False
    knows_weight_decay = False
    sends_model = False
    sends_update = True
    keeps_personal = False
    batched = True

    def check(self, training: LocalTrainingSettings) -> None:
        """Check the settings that all rules share; momentum and weight decay are of local steps alone."""
        self.knows_momentum = self.knows_weight_decay = self.settings.form == LOCAL
        super().check(training)

    def asks_gradients(self) -> bool:
        """Whether the form is the paper's."""
        return bool(self.settings.form == PAPER)

    def gradients(self, steps: int) -> int:
        """Return ``gradient-steps``: in the paper's form a run's local steps are not taken."""
        return steps if self.settings.form == LOCAL else int(self.settings.gradient_steps)

    def examples(self, training: LocalTrainingSettings) -> int:
        """Return ``gradient-batch``; in the local form the batch size."""
        return training.batch_size if self.settings.form == LOCAL else int(self.settings.gradient_batch)

    def factor(self, job: TrainingJob) -> float:
        """Return what the gradient is multiplied by."""
        return 1.0

    def reply(self, job: TrainingJob) -> dict[str, Model]:
        """Return the gradient under the model's parameter names, packed as the model is.

        Raises:
            ConfigError: for a model with anything but trainable parameters.
        """
        self._check_model(job)
        total: Arrays
        if self.settings.form == LOCAL:
            total = {name: np.subtract(job.arrays[name], w) for name, w in job.train(SGD()).items()}
            share = self.factor(job)
        else:
            total, share = self._gradients(job), self.factor(job) / self.settings.gradient_steps
        if share != 1:
            total = {name: np.multiply(t, share, dtype=t.dtype) for name, t in total.items()}
        return {keys.ARRAYS: job.pack(total)}

    def _gradients(self, job: TrainingJob) -> Arrays:
        """Return the sum of the gradients of ``gradient-steps``."""
        steps, size = self.settings.gradient_steps, self.settings.gradient_batch
        batches = Minibatches(
            job.seed, job.client_id, job.server_round, job.examples, steps if size else 0, size or 1, "gradient"
        ).rows()
        at, rate = dict(job.arrays), job.training.learning_rate
        total: Arrays = {}
        for step in range(steps):
            gradient = job.gradient(at, next(batches) if size else None)
            total = {name: np.add(total[name], g) if total else g for name, g in gradient.items()}
            if step < steps - 1:
                at = {name: at[name] - np.multiply(g, rate, dtype=g.dtype) for name, g in gradient.items()}
        return total

    def _check_model(self, job: TrainingJob) -> None:
        batch_norm = []
        if job.model is not None:  # an app's own: its names alone are known, which the server has checked
            from torch.nn.modules.batchnorm import _BatchNorm

            batch_norm = [name for name, module in job.model.named_modules() if isinstance(module, _BatchNorm)]
        if batch_norm:
            raise ConfigError(
                f"model with BatchNorm is not allowed with local-rule = '{self.name}': {', '.join(batch_norm)} "
                "(its loss is no mean over examples)"
            )
        if others := sorted(set(job.arrays) - set(job.trainable)):
            raise ConfigError(
                f"model with {', '.join(others)} is not allowed with local-rule = '{self.name}': trainable "
                "parameters alone, each under one name (no buffers, nothing frozen or shared)"
            )


def check_floats(arrays: Model, strategy: str) -> None:
    """Check that a step can be taken on all arrays of a model.

    Raises:
        ConfigError: for an array of whole numbers (a counter of batch normalisation).
    """
    for name, array in arrays.items():
        if not np.issubdtype(dtype := view(array).dtype, np.floating):
            raise ConfigError(f"array '{name}' of dtype {dtype} is not allowed with {strategy}: floating point")


def flat(arrays: Model, names: Sequence[str]) -> Vector:
    """Return the named arrays' values in one vector; one array is not copied."""
    parts: list[NDArray[Any]] = [view(arrays[name]).reshape(-1) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def moved_arrays(arrays: Model, step_size: float, direction: NDArray[np.float64]) -> Model:
    """Return ``arrays + step_size * direction``, summed in float64, in the layout of ``arrays``.

    Args:
        arrays: the model.
        step_size: factor.
        direction: one value for each value of the model, in its order.
    """
    out, start = {}, 0
    for name, array in arrays.items():
        values = view(array)
        part = direction[start : start + values.size] * step_size
        np.add(part, values.reshape(-1), out=part)
        out[name] = part.astype(values.dtype, copy=False).reshape(values.shape)
        start += values.size
    return array_record(out)


DEFAULTS = {PAPER: 0.3, LOCAL: 0.02}
"""epsilon by form: at 0.3 all are satisfied, and the run is over, before local steps have done their work."""
DEFAULT = DEFAULTS[PAPER]
"""The loss at which a client leaves where neither its owner nor the run's strategy names one."""


class Defect(Policy):
    """Leave for good, satisfied, once the loss is at most ``leave-below``: the paper's rational agent (section 2)."""

    name = "defect"
    can_leave = True

    class Settings(PluginSettings):
        """The policy's settings."""

        leave_below: Positive | None = None
        """the loss at which the client leaves; not set: the strategy's precision, else 0.3"""

    def decide(self, situation: Situation) -> Decision:
        """Return that the client leaves where its loss is low enough, else that it joins."""
        leave_below = self.settings.leave_below
        limit = float(situation.told.get("precision", DEFAULT)) if leave_below is None else leave_below
        return Decision.LEFT if situation.loss <= limit else Decision.JOINED


CASE_3 = "every client is predicted to leave (case 3)"
STALLED = "nothing is left of the step (stalled)"
ALL_LEFT = "every client has left"


@dataclass
class Agents:
    """One round: what is gathered, the clients expected, and those that answered."""

    gathered: Gathered
    expected: set[str]
    answered: set[str] = field(default_factory=set)


class OneEach(Influence):
    """Each client counts once."""

    def log_weight(self, round: Round, reply: Reply) -> float:
        """Return 0."""
        return 0.0


class AdaGD(Strategy):
    """ADA-GD (anonymous, under review): predicts who is about to leave, and moves so that they stay.

    An expected client is a known seen one that has not left, connected or not; without a roll call, one of the nodes
    that `configure_train` found. An end is for good, so the run does not end (case 3, stalled) in a round in which
    one of them was missing.
    """

    name = "adagd"
    refuses_batch_norm = True
    policy = "defect"
    needs_losses = True
    needs_everybody = True
    influence = OneEach
    still_open = "a client that seems about to leave keeps all others from moving along its gradient"
    loss_modes = ("evaluation",)
    """Its gradients are those of the loss in evaluation mode."""
    claimed = keys.LOSS
    """What a client reports about its loss."""

    from_run: ClassVar[Mapping[str, str]] = FROM_RUN
    untold = frozenset(FROM_RUN.values())

    class Settings(CountedSteps):
        """ADA-GD's settings."""

        form: Literal["one-gradient", "local"] | None = None
        """what clients send; one-gradient: as in the paper; local: what the run's local steps change (beyond the
        theorem); not set: one-gradient where step-size, gradient-batch or gradient-steps is, else local"""
        step_size: Positive | None = None
        """for form = one-gradient: eta; not set: 0.1"""
        precision: Positive | None = None
        """epsilon, the loss at which a rational client leaves; not set: 0.3, with form = local 0.02"""
        slack: Positive = 2.0
        """D holds clients with a predicted loss of at most slack * epsilon"""
        on_missing: Literal["wait", "proceed"] = "wait"
        """where a reply is missing the model stays, or moves all the same (outside the theory)"""
        gradient_batch: CountOrZero = 0
        """for form = one-gradient: examples a gradient; 0: all (any other number is outside the theory)"""
        gradient_steps: Count = 1
        """for form = one-gradient: local steps a gradient; above 1 is outside the theory"""

        @model_validator(mode="after")
        def _resolved(self) -> Self:
            """Settle what is not set, by the form."""
            of_paper = {
                "step-size": self.step_size,
                "gradient-batch": self.gradient_batch or None,
                "gradient-steps": self.gradient_steps if self.gradient_steps > 1 else None,
            }
            given = {key: value for key, value in of_paper.items() if value is not None}
            form = self.form or (PAPER if given else LOCAL)
            if form == LOCAL and given:
                (key, value), *_ = given.items()
                raise ValueError(f"{key} = {value} is not allowed with form = '{LOCAL}': '{PAPER}'")
            settled: dict[str, object] = {"form": form, "precision": self.precision or DEFAULTS[form]}
            if form == PAPER:
                settled["step_size"] = self.step_size or 0.1
            for name, of_form in settled.items():
                object.__setattr__(self, name, of_form)
            return self

        @property
        def threshold(self) -> float:
            """The predicted loss up to which a client is in D: ``slack * epsilon``."""
            return self.slack * float(self.precision or 0.0)

    settings: Settings

    class LocalRule(Gradient):
        """The gradient of the client's loss, in place of a model."""

        name = "gradient"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.waits_for_all = self.settings.on_missing == "wait"
        if self.settings.form == LOCAL:
            self.settings.check_counted(self.name)

    def check_shared(self, shared: SharedSettings) -> None:
        """Refuse a schedule of the learning rate where no client uses one.

        Raises:
            ConfigError: names the settings.
        """
        one_gradient = self.settings.form == PAPER and self.settings.gradient_steps == 1
        if not shared.constant_learning_rate and one_gradient:
            raise ConfigError(
                f"lr-schedule = '{shared.lr_schedule}' with lr-warmup-rounds = {shared.lr_warmup_rounds} "
                f"is not allowed with strategy = '{self.name}': a round is one step of {self.name}.step-size, which "
                "no schedule scales (constant, 0)"
            )

    @classmethod
    def notes(cls, config: RunConfig, settings: Any) -> list[str]:
        """Return what clients send in the rounds."""
        if settings.form == LOCAL:
            return [f"{cls.name}'s local form, beyond its theorem"]
        return ["one gradient a round"] if settings.gradient_steps == 1 else []

    @property
    def threshold(self) -> float:
        """What line 4 compares with."""
        return float(self.settings.threshold)

    def pool(self, round: Round) -> list[Member]:
        """Return all clients that can be asked.

        None of them while one is offline that is waited for.
        """
        online = super().pool(round)
        return [] if self.waits_for_all and round.members.awaited() - {m.client_id for m in online} else online

    def report(self, measured: Measured) -> Claims:
        """Return F_m of the model that was sent."""
        return {keys.LOSS: measured.loss}

    def begin(self, round: Round) -> None:
        """Begin a round."""
        check_floats(round.model, f"strategy = '{self.name}'")
        clients = round.members.awaited()
        away = clients - {member.client_id for member in round.members.available()}
        # In the local form eta is 1: the updates have the clients' learning rate in them.
        gathered = Gathered(self.settings.step_size or 1.0, self.threshold, local=self.settings.form == LOCAL)
        # Where one is waited for that is away, no client is asked: see `pool`.
        round.carry = Agents(gathered, away if self.waits_for_all and away else clients)

    def add(self, round: Round, reply: Reply) -> None:
        """Take in one gradient: into the sum, or as it is (in D).

        Raises:
            Refused: for a reply without a loss, another layout, or a value that is not finite.
        """
        agents: Agents = round.carry
        loss = reply.claim(self.claimed)
        round.sum.check(reply.arrays)
        names = list(round.model)
        counted = flat(reply.arrays, names)
        gradient = counted if reply.sent is None else flat(reply.sent, names)
        local = agents.gathered.local
        agents.gathered.add(loss, gradient, counted, self.settings.steps(int(reply.num_examples)) if local else 1)
        agents.answered.add(reply.member.client_id)

    def finish(self, round: Round) -> Model | Kept:
        """Return the next model; the model stays where a reply is missing, or the run is over."""
        agents: Agents = round.carry
        gathered, numbers = agents.gathered, round.metrics
        missing, count = len(agents.expected - round.members.left - agents.answered), len(gathered.losses)
        numbers |= {"missing": missing, "leaving": len(gathered.leaving)}
        if not count:
            if agents.expected and not missing:
                round.end = ALL_LEFT
            return KEEP_MODEL
        if self.claimed == keys.LOSS:
            numbers["agents_loss"] = sum(loss / count for loss in gathered.losses)
        if missing and self.waits_for_all:
            return KEEP_MODEL
        case, direction = gathered.move()
        numbers["case"] = case
        if direction is not None:
            numbers["direction_norm"] = norm(direction)
            if direction.any():
                return moved_arrays(round.model, gathered.step_size, direction)
        if not missing:
            round.end = CASE_3 if case == 3 else STALLED
        return KEEP_MODEL
