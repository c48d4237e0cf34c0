r"""MaxFL: maximise the number of clients to whom the global model appeals.

Cho, Jhunjhunwala, Li, Smith, Joshi: "Maximizing Global Model Appeal in Federated Learning". TMLR 2024.

Each client k weights its update by how winnable it is (equation 4)::

    q_k(w) = (1 - s) s,   s = sigmoid(F_k(w) - rho_k)

and the server moves by the weighted updates ``delta_k = w_k^(tau) - w`` (equations 5 and 6)::

    w <- w + eta_g * sum_k q_k delta_k / (sum_k q_k + epsilon)

Two slips of the paper are resolved: Algorithm 1, line 8 prints ``q_k = sigma(F_k - rho_k)``, which is not the
gradient's weight of equation 4; and Section 3 and Algorithm 1 give delta opposite signs, of which only the one
above lowers the loss.

``step-sizes = theorem-3.1`` takes theorem 3.1's, of T rounds, tau local steps and m clients a round::

    eta_l = 1 / (sqrt(T) tau),   eta_g = sqrt(tau m),   epsilon = m

The theorem names no epsilon. This one is that of its proof for partial participation (appendix B.3), which also puts
m before eta_g; Algorithm 1 and the bounds that the proof uses do not, and neither is it done here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from fedappeal.core.algorithm import PersonalModels
from fedappeal.core.requirement import Measured
from fedappeal.settings.config import ConfigError, CountOrZero, Positive, RunConfig
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import NOTHING, Instructions, Model, Reply, Round
from strategies.rounds.shared import SharedSettings
from strategies.rounds.strategy import Claims, Strategy, StrategySettings

APPEAL_WEIGHT = "appeal-weight"
"""Key in a joined reply: the client's q_k."""


def appeal_weight(loss: float, requirement: float) -> float:
    """Weight of a client's update, q_k of equation 4.

    Args:
        loss: F_k(w), the client's training loss of the global model.
        requirement: rho_k, the loss it requires.

    Returns:
        ``s (1 - s)`` with ``s = sigmoid(loss - requirement)``: in [0, 0.25], largest where the two are equal,
        symmetric in their gap, and 0 (never NaN) for gaps too large to tell.
    """
    decay = math.exp(-abs(loss - requirement))
    return min(0.25, decay / (1.0 + decay) ** 2)  # rounding can give a hair more, which the server would refuse


THEOREM = "theorem-3.1"
"""The value of ``step-sizes`` that follows the theorem."""


class StepSizes(NamedTuple):
    """Step sizes of a round: eta_l (None: the run's), eta_g and epsilon."""

    local_lr: float | None
    server_lr: float
    stabilizer: float


def theorem_step_sizes(rounds: int, local_steps: int, clients: int) -> StepSizes:
    """Return the step sizes of theorem 3.1.

    For T rounds, tau local steps and m clients a round, all at least 1.
    """
    return StepSizes(1.0 / (math.sqrt(rounds) * local_steps), math.sqrt(local_steps * clients), float(clients))


class TunedModels(PersonalModels):
    """Clients judge a model as they would use it: after the fine-tuning of Table 4."""

    def tuning_steps(self) -> int:
        """Return ``tuning-steps``."""
        return self.settings.tuning_steps or 0


class MaxFL(Strategy):
    """MaxFL (Cho et al., TMLR 2024): weights clients by how winnable they are."""

    name = "maxfl"
    compares_losses = True
    from_run: ClassVar[Mapping[str, str]] = {"tuning_steps": "tuning-steps", "local_steps": "local-steps"}
    untold = frozenset({"step-sizes", "local-steps"})
    personal = TunedModels

    class Settings(StrategySettings):
        """MaxFL's settings."""

        server_lr: Positive = 1.0
        """eta_g, the server's learning rate"""
        stabilizer: Positive = 1e-3
        """epsilon in the denominator"""
        tuning_steps: CountOrZero | None = None
        """fine-tuning steps before q_k is computed (Table 4); not set: tuning-steps of the run"""

        step_sizes: Literal["set", "theorem-3.1"] = "set"
        """set: server-lr, stabilizer, learning-rate; theorem-3.1: of rounds, steps, clients"""
        local_steps: CountOrZero | None = None
        """tau of theorem-3.1's step sizes; not set: local-steps of the run"""

    settings: Settings

    def check_shared(self, shared: SharedSettings) -> None:
        """Refuse what would change, or be without effect on, the theorem's step sizes.

        Raises:
            ConfigError: names the setting.
        """
        settings = self.settings
        if settings.step_sizes != THEOREM:
            return
        schedule = f"lr-schedule = '{shared.lr_schedule}' with lr-warmup-rounds = {shared.lr_warmup_rounds}"
        for fits, setting, allowed in (
            (settings.server_lr == 1, f"maxfl.server-lr = {settings.server_lr:g}", "it is sqrt(tau m) (1)"),
            (settings.stabilizer == 1e-3, f"maxfl.stabilizer = {settings.stabilizer:g}", "it is m (0.001)"),
            (
                settings.local_steps,
                f"local-steps = {settings.local_steps or 0}",
                "tau is a number of steps (at least 1)",
            ),
            (shared.constant_learning_rate, schedule, "eta_l is the same in all rounds (constant, 0)"),
        ):
            if not fits:
                raise ConfigError(f"{setting} is not allowed with maxfl.step-sizes = '{THEOREM}': {allowed}")

    @classmethod
    def check_run(cls, config: RunConfig, settings: Any) -> None:
        """Refuse a tau that is not the number of local steps, and tuning beside adaptation.

        Raises:
            ConfigError: names the setting.
        """
        config.check_tuning(settings.tuning_steps or 0, "maxfl.tuning-steps")
        if settings.step_sizes == THEOREM and settings.local_steps not in (None, config.local_steps):
            raise ConfigError(
                f"maxfl.local-steps = {settings.local_steps} is not allowed with maxfl.step-sizes = '{THEOREM}': "
                f"tau is local-steps = {config.local_steps}"
            )

    def step_sizes(self, round: Round) -> StepSizes:
        """Return a round's step sizes.

        Raises:
            ConfigError: the theorem's, over a number of rounds that is not known.
        """
        settings = self.settings
        if settings.step_sizes != THEOREM:
            return StepSizes(None, settings.server_lr, settings.stabilizer)
        if not round.num_rounds:
            raise ConfigError(
                f"maxfl.step-sizes = '{THEOREM}' is not allowed without start, which knows the number of rounds: set"
            )
        trainable = len(round.members.population())
        clients = min(round.shared.clients_per_round or trainable, trainable)
        assert settings.local_steps  # checked with the other settings
        return theorem_step_sizes(round.num_rounds, settings.local_steps, max(1, clients))

    def wave(self, round: Round, members: Sequence[Member]) -> Instructions:
        """Tell the clients eta_l where it is not the run's."""
        local_lr = self.step_sizes(round).local_lr
        return NOTHING if local_lr is None else Instructions(all={"learning-rate": local_lr})

    def report(self, measured: Measured) -> Claims:
        """Return the client's q_k, of the loss by which it judges."""
        return {APPEAL_WEIGHT: appeal_weight(measured.judged.loss, measured.rho)}

    def weight(self, reply: Reply) -> float:
        """Return the q_k that the client reported.

        Raises:
            Refused: outside [0, 0.25].
        """
        return reply.claim(APPEAL_WEIGHT, 0.0, 0.25)

    def update(self, round: Round) -> Model:
        """Return the model, moved along the weighted updates.

        ``(1 - eta Q) w + eta sum q_k w_k`` with ``eta = eta_g / (Q + epsilon)``.
        """
        total = round.claimed_weight  # Q: bounds change the clients' shares of it, not the step
        sizes = self.step_sizes(round)
        step = sizes.server_lr / (total + sizes.stabilizer)
        round.metrics["appeal_weight"] = total
        share = total / round.sum.weight if round.sum.weight else 1.0
        return round.sum.combine(keep=1.0 - step * total, scale=step * share)
