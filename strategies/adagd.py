r"""ADA-GD: gradient descent that keeps those who are about to leave.

"On the Effect of Defection in Federated Learning and How to Prevent It", anonymous, under review. Algorithm 1.

Agent m leaves for good once ``F_m(w) <= epsilon``. With full gradients ``g_m = grad F_m(w)`` of all M agents the
server predicts who would leave after a step along its own gradient (line 4)::

    D = {m : F_m(w) - eta |g_m| <= 2 epsilon}

and moves ``w <- w - eta v / max(|v|, 1)`` (lines 10, 12 and 15) with

    case 1   some are in D, some are not    v = sum of g_m over m not in D, made orthogonal to every g_m, m in D
    case 2   nobody is in D                 v = mean of g_m over all
    case 3   everybody is in D              the run ends; w is the answer, every F_m(w) between epsilon and 4 epsilon

Case 1 sums and case 2 averages, and the step is clipped after projecting, as printed. Whether m is in D depends on
its own loss and gradient alone, so it is decided when the reply comes: only the gradients of D are kept, and one sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import ArrayLike, NDArray

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, Scalar
from fedappeal.protocol.keys import SEEN
from strategies.members import Member
from strategies.projection import norm, orthogonal_component
from strategies.replies import TrainReply, claim
from strategies.shared import Shared
from strategies.vectors import Vector, check_floats, flat, moved
from strategies.volunteers import VolunteerStrategy

CASE_3 = "every client is predicted to leave (case 3)"
STALLED = "nothing is left of the step (stalled)"
ALL_LEFT = "every client has left"
_NORMALISATION = ("running_mean", "running_var", "num_batches_tracked")


def theorem_step_size(precision: float, lipschitz: float, smoothness: float, agents: int) -> float:
    """Return the largest step size of Theorem 1: no agent leaves, and the run ends with ``F <= 4 epsilon``.

    Args:
        precision: epsilon.
        lipschitz: L, of every F_m (Assumption 2).
        smoothness: H, of every F_m (Assumption 1).
        agents: M.

    Returns:
        ``min(epsilon / L, sqrt(epsilon / 2H), sqrt(2 / H), 1 / (M H))``.

    Raises:
        ValueError: if one of them is not positive.
    """
    check_positive(precision=precision, lipschitz=lipschitz, smoothness=smoothness, agents=agents)
    return min(
        precision / lipschitz,
        math.sqrt(precision / (2 * smoothness)),
        math.sqrt(2 / smoothness),
        1 / (agents * smoothness),
    )


def clipped(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the step's direction ``-v / max(|v|, 1)`` (lines 10 and 12): at most of length 1."""
    return vector / -max(norm(vector), 1.0)


@dataclass
class Gathered:
    """What Algorithm 1 needs of the agents' replies: the gradients in D, and the sum of the others.

    Attributes:
        step_size: eta.
        threshold: D holds agents with a predicted loss of at most that (the paper: 2 epsilon).
        leaving: the gradients in D, each of shape ``(d,)``.
        rest: sum of the others in float64, shape ``(d,)``; None while there is none.
        losses: F_m of all, in the order in which they came.
    """

    step_size: float
    threshold: float
    leaving: list[Vector] = field(default_factory=list)
    rest: NDArray[np.float64] | None = None
    losses: list[float] = field(default_factory=list)

    def add(self, loss: float, gradient: Vector) -> bool:
        """Take in one agent's F_m and gradient, shape ``(d,)``; return whether it is in D (line 4)."""
        leaves = loss - self.step_size * norm(gradient) <= self.threshold
        if leaves:
            self.leaving.append(gradient)
        elif self.rest is None:
            self.rest = gradient.astype(np.float64)
        else:
            self.rest += gradient
        self.losses.append(loss)
        return leaves

    def move(self) -> tuple[int, NDArray[np.float64] | None]:
        """Return the case, and the step's direction, shape ``(d,)``: None in case 3, zeros where it is stalled."""
        if self.rest is None:
            return 3, None
        if self.leaving:
            return 1, clipped(orthogonal_component(self.rest, self.leaving))
        return 2, clipped(self.rest / len(self.losses))


@dataclass(frozen=True)
class AdaGDStep:
    """One step of Algorithm 1.

    Attributes:
        case: 1, 2 or 3.
        leaving: the predicted set D, bool, shape ``(M,)``.
        direction: the next model is ``w + step_size * direction``; float64, shape ``(d,)``, None in case 3.
        stalled: whether nothing was left of the step: the direction is zero.
    """

    case: int
    leaving: NDArray[np.bool_]
    direction: NDArray[np.float64] | None
    stalled: bool


def step(
    gradients: ArrayLike, losses: ArrayLike, step_size: float, precision: float, slack: float = 2.0
) -> AdaGDStep:
    """Return one step of Algorithm 1 for the gradients and losses of all agents.

    Args:
        gradients: g_m, shape ``(M, d)``.
        losses: F_m(w), shape ``(M,)``.
        step_size: eta.
        precision: epsilon.
        slack: factor on epsilon in line 4.

    Raises:
        ValueError: for other shapes, a value that is not finite, or a setting that is not positive.
    """
    check_positive(step_size=step_size, precision=precision, slack=slack)
    return one_step(Gathered(step_size, slack * precision), gradients, losses)


def one_step(gathered: Gathered, gradients: ArrayLike, losses: ArrayLike) -> AdaGDStep:
    """Return the step of a round, of which nothing is gathered yet; arguments and errors as `step`."""
    rows, values = np.asarray(gradients), np.asarray(losses, dtype=np.float64)
    if rows.ndim != 2 or values.shape != (len(rows),) or not len(rows):
        raise ValueError(f"gradients of shape {rows.shape} and losses of shape {values.shape}: (M, d) and (M,)")
    if not np.issubdtype(rows.dtype, np.floating):
        rows = rows.astype(np.float64)
    if not np.isfinite(values).all() or not all(np.isfinite(row).all() for row in rows):
        raise ValueError("a loss or a gradient has values that are not finite")
    leaving = [gathered.add(float(loss), row) for loss, row in zip(values, rows, strict=True)]
    case, direction = gathered.move()
    return AdaGDStep(case, np.array(leaving), direction, direction is not None and not direction.any())


def check_positive(**settings: float) -> None:
    """Refuse settings that are not more than 0 and finite.

    Raises:
        ConfigError: names the setting.
    """
    for name, value in settings.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name.replace('_', '-')} = {value} is not allowed: more than 0")


class AdaGD(VolunteerStrategy):
    """ADA-GD's server: every client's full-batch gradient in every round, one step a round.

    An expected client is a known seen one that has not left, connected or not; without a roll call, one of the nodes
    that `configure_train` found. An end is for good, so the run does not end (case 3, stalled) in a round in which
    one of them was missing.

    Args:
        step_size: eta.
        precision: epsilon, the loss at which a client leaves.
        slack: factor on epsilon in line 4.
        on_missing: where an expected client's gradient is missing, ``wait`` keeps the model and waits for it;
            ``proceed`` goes on with those that answered, which no theorem covers.
        shared: settings that all strategies share.

    Raises:
        ConfigError: for ``clients_per_round``, or a setting that is not allowed.
    """

    name = "adagd"
    """The strategy, as a run names it."""
    local_rule = "gradient"
    reported = keys.LOSS
    """What a client reports about its loss."""

    def __init__(
        self,
        *,
        step_size: float,
        precision: float,
        slack: float = 2.0,
        on_missing: Literal["wait", "proceed"] = "wait",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        check_positive(step_size=step_size, precision=precision, slack=slack)
        if self.clients_per_round is not None:
            raise ConfigError(
                f"clients-per-round = {self.clients_per_round} is not allowed with strategy = '{self.name}': "
                "every round needs all clients (None)"
            )
        if on_missing not in ("wait", "proceed"):
            raise ConfigError(f"on-missing = '{on_missing}' is not allowed: wait, proceed")
        self.step_size = step_size
        self.precision = precision
        self.slack = slack
        self.waits_for_all = on_missing == "wait"
        self._bare = False
        self._sent = ArrayRecord()
        self._expected: set[str] = set()
        self._answered: set[str] = set()
        self._gathered = self.nothing_gathered()

    def nothing_gathered(self) -> Gathered:
        """Return what a round begins with."""
        return Gathered(self.step_size, self.slack * self.precision)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Sequence[Message]:
        """Open a round with the nodes that are there now."""
        self._bare = True  # node ids are random: one that is gone comes back as another
        return list(super().configure_train(server_round, arrays, config, grid))

    def order(self, server_round: int) -> list[Member]:
        """Return all clients; none while one is offline whose gradient is waited for: the others' would be lost."""
        online = super().order(server_round)
        return [] if self.waits_for_all and len(online) < len(self._known()) else online

    def _known(self) -> set[str]:
        known = [m.client_id for m in self.members.online(SEEN)] if self._bare else self.members.of_role(SEEN)
        return set(known) - self._gone

    def check_layout(self, names: Sequence[str]) -> None:
        """Refuse batch normalisation: its statistics are no parameters, so a gradient step would leave them behind.

        Raises:
            ConfigError: names the layers.
        """
        layers = dict.fromkeys(
            name.rpartition(".")[0] or "(unnamed)" for name in names if name.rpartition(".")[2] in _NORMALISATION
        )
        if layers:
            raise ConfigError(
                f"model with BatchNorm is not allowed with strategy = '{self.name}': {', '.join(layers)} "
                "(parameters alone, no running statistics)"
            )

    def train_settings(self) -> dict[str, Scalar]:
        """Ask each client for its loss of the model that is sent."""
        return {keys.REPORT: self.reported}

    def gather(self, arrays: ArrayRecord) -> None:
        """Begin a round."""
        super().gather(arrays)
        self.check_layout(list(arrays))
        check_floats(arrays, f"strategy = '{self.name}'")
        self._sent = arrays
        known = self._known()
        away = known - {m.client_id for m in self.members.online(SEEN)}
        self._expected = away if self.waits_for_all and away else known  # see `order`: then nobody is asked
        self._answered = set()
        self._gathered = self.nothing_gathered()

    def accept(self, member: Member, reply: TrainReply) -> None:
        """Take in one gradient: into the sum, or, where the client is predicted to leave, as it is.

        Raises:
            Refused: for a reply without a loss, another layout, or a value that is not finite.
        """
        assert self._fold is not None
        assert reply.arrays is not None
        loss = claim(reply.metrics, self.reported)
        self._fold.check(reply.arrays)
        self._gathered.add(loss, flat(reply.arrays, list(self._sent)))
        self._answered.add(member.client_id)

    def conclude(self) -> tuple[ArrayRecord | None, dict[str, float]]:
        """Return the next model: None where it stays, because a reply is missing or the run is over."""
        gathered, self._gathered = self._gathered, self.nothing_gathered()
        missing, agents = len(self._expected - self._gone - self._answered), len(gathered.losses)
        numbers: dict[str, float] = {"missing": missing, "leaving": len(gathered.leaving)}
        if not agents:
            if self._expected and not missing:
                self.finished = ALL_LEFT
            return None, numbers
        if self.reported == keys.LOSS:
            numbers["agents_loss"] = sum(loss / agents for loss in gathered.losses)
        if missing and self.waits_for_all:
            return None, numbers
        case, direction = gathered.move()
        numbers["case"] = case
        if direction is not None:
            numbers["direction_norm"] = norm(direction)
            if direction.any():
                return moved(self._sent, self.step_size, direction), numbers
        if not missing:
            self.finished = CASE_3 if case == 3 else STALLED
        return None, numbers
