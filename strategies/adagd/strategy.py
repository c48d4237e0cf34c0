r"""ADA-GD's strategy: every client's full-batch gradient in every round, one step a round.

"On the Effect of Defection in Federated Learning and How to Prevent It", anonymous, under review. Algorithm 1, whose
mathematics is in `strategies.adagd.algorithm`. A joined client sends its loss F_m of the model that was sent, and in
place of a model the gradient of that loss.

With ``influence = bounded`` the gradients in the sums of cases 1 and 2 have bounds. Whether a client is in D, and
what the step is orthogonal to, follow from its gradient as it was sent. So the paper's guarantee that no client
leaves (Theorem 1) holds as it stands: it needs a step of at most eta, and right angles to the gradients in D. The
descent is that of the bounded sum. The bounds say nothing of D: a client that claims to be in it has its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings, TrainingJob
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy, Situation
from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, array_record, view
from fedappeal.settings.config import ConfigError, Count, CountOrZero, Positive
from strategies.adagd.algorithm import Gathered
from strategies.projection import Vector, norm
from strategies.rounds.algorithm import Influence
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import KEEP_MODEL, Kept, Model, Reply, Round
from strategies.rounds.shared import SharedSettings
from strategies.rounds.strategy import Claims, Strategy, StrategySettings


class Gradient(LocalRule):
    """The gradient of the client's loss, in place of a model: Algorithm 1, line 3.

    F_m is the mean loss over all training examples of the model w that was sent, in evaluation mode (no dropout), so
    that loss and gradient are of the same function and server and client predict alike. Two settings leave the
    theory, which knows exact gradients and one step only (the paper's experiments do too):

    * ``gradient-batch`` > 0: each gradient is of that many examples;
    * ``gradient-steps`` = K > 1: the client takes K local steps ``w <- w - learning-rate * g`` and sends
      ``(w_0 - w_K) / (K * learning-rate)``, the mean of the K gradients on its way.
    """

    knows_momentum = False
    knows_weight_decay = False
    sends_model = False
    sends_update = True
    keeps_personal = False
    batched = True

    def gradients(self, steps: int) -> int:
        """Return ``gradient-steps``: a run's local steps are not taken."""
        return int(self.settings.gradient_steps)

    def examples(self, training: LocalTrainingSettings) -> int:
        """Return ``gradient-batch``."""
        return int(self.settings.gradient_batch)

    def factor(self, job: TrainingJob) -> float:
        """Return what the gradient is multiplied by."""
        return 1.0

    def reply(self, job: TrainingJob) -> dict[str, Model]:
        """Return the gradient under the model's parameter names, packed as the model is.

        Raises:
            ConfigError: for a model with anything but trainable parameters.
        """
        self._check_model(job)
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
        if (share := self.factor(job) / steps) != 1:
            total = {name: np.multiply(t, share, dtype=t.dtype) for name, t in total.items()}
        return {keys.ARRAYS: job.pack(total)}

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


def moved(arrays: Model, step_size: float, direction: NDArray[np.float64]) -> Model:
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


DEFAULT = 0.3
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

    class Settings(StrategySettings):
        """ADA-GD's settings."""

        step_size: Positive = 0.1
        """eta"""
        precision: Positive = 0.3
        """epsilon, the loss at which a rational client leaves"""
        slack: Positive = 2.0
        """D holds clients with a predicted loss of at most slack * epsilon"""
        on_missing: Literal["wait", "proceed"] = "wait"
        """where a reply is missing the model stays, or moves all the same (outside the theory)"""
        gradient_batch: CountOrZero = 0
        """examples a gradient; 0: all (any other number is outside the theory)"""
        gradient_steps: Count = 1
        """local steps a gradient; above 1 is outside the theory"""

    settings: Settings

    class LocalRule(Gradient):
        """The gradient of the client's loss, in place of a model."""

        name = "gradient"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.waits_for_all = self.settings.on_missing == "wait"

    def check_shared(self, shared: SharedSettings) -> None:
        """Refuse a schedule of the learning rate where no client uses one.

        Raises:
            ConfigError: names the settings.
        """
        if not shared.constant_learning_rate and self.settings.gradient_steps == 1:
            raise ConfigError(
                f"lr-schedule = '{shared.lr_schedule}' with lr-warmup-rounds = {shared.lr_warmup_rounds} "
                f"is not allowed with strategy = '{self.name}': a round is one step of {self.name}.step-size, which "
                "no schedule scales (constant, 0)"
            )

    def nothing_gathered(self) -> Gathered:
        """Return what a round begins with."""
        return Gathered(self.settings.step_size, self.settings.slack * self.settings.precision)

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
        # Where one is waited for that is away, no client is asked: see `pool`.
        round.carry = Agents(self.nothing_gathered(), away if self.waits_for_all and away else clients)

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
        agents.gathered.add(loss, counted if reply.sent is None else flat(reply.sent, names), counted)
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
                return moved(round.model, self.settings.step_size, direction)
        if not missing:
            round.end = CASE_3 if case == 3 else STALLED
        return KEEP_MODEL
