r"""SCAFFOLD: control variates take the clients' drift out of their local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning".
ICML 2020, Algorithm 1. Each client i keeps a control variate c_i, an estimate of its own gradient, and the server the
mean c of all of them; both start at zero. Clients in S descend from the model x that was sent (equation 3)::

    y_i <- y_i - eta_l (g_i(y_i) - c_i + c)

take a new control variate (equation 4, option II; the mean of the K gradients that were used)::

    c_i^+ = c_i - c + (x - y_i) / (K eta_l)

and send y_i and ``c_i^+ - c_i``; then (equation 5)::

    x <- x + eta_g mean_{i in S} (y_i - x)
    c <- c + |S|/N mean_{i in S} (c_i^+ - c_i)

The mean over S is unweighted. The last line says that c is the mean of c_i over all N clients, and that is what is
kept: the sum of all changes, divided by N when it is sent, so that it stays the mean while clients arrive (with
c_i = 0). N is the number of seen clients that were ever enrolled.

c is the mean only while both sides agree on every c_i. The change in a reply that was surplus, late or refused counts
on neither side: a client remembers c_i before and after its latest round, and is told which of its rounds the server
added last.

With ``influence = bounded`` the server keeps each client's c_i, one model a client, and bounds c_i itself in place of
its changes, which would add up over the rounds.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from client.training.sgd import SGD
from fedappeal.core.local_rule import (
    BatchedTerms,
    LocalProblem,
    Store,
    TrainingJob,
    recall_before,
    remember_round,
    stack_tensors,
)
from fedappeal.core.local_rule import LocalRule as AnyRule
from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol import keys
from fedappeal.protocol.keys import SEEN
from fedappeal.protocol.packing import array_record, view
from fedappeal.settings.config import ConfigError, Positive
from strategies.rounds.algorithm import Influence
from strategies.rounds.exchange.members import Member
from strategies.rounds.reply import Refused
from strategies.rounds.round import KEEP_MODEL, Instructions, Kept, Model, Reply, Round, under_name
from strategies.rounds.strategy import Strategy, StrategySettings
from strategies.rounds.sums.influence import log_norm, zeros_like
from strategies.rounds.sums.weighted_sum import CheckedModel, WeightedSum, finite

if TYPE_CHECKING:
    from torch import Tensor, nn


log = logging.getLogger("fedappeal")

CONTROL = "control"
"""ArrayRecord of TRAIN: c."""
CONTROL_DELTA = "control-delta"
"""ArrayRecord of a joined reply: ``c_i^+ - c_i``."""
CONTROL_ROUND = "control-round"
"""Key in TRAIN: the client's last round whose change went into c; 0: none did."""
_SUM = "control-sum"
_TAKEN = "control-taken"
_CONTROLS = "controls"
_SHARES = "control-shares"

Controls = Mapping[str, NDArray[Any]]
"""A control variate by parameter name."""


def control_delta(sent: Controls, local: Controls, control: Controls, steps: int, learning_rate: float) -> Controls:
    """Return ``c_i^+ - c_i`` of option II: ``(x - y_i) / (K eta_l) - c``.

    Args:
        sent: x, the model that was sent, by name.
        local: y_i, the model after local training; names as ``control``.
        control: c, the server's control variate.
        steps: K, at least 1.
        learning_rate: eta_l, more than 0.

    Returns:
        Arrays of the names, shapes and dtypes of ``control``.
    """
    scale = 1.0 / (steps * learning_rate)
    return {name: np.asarray((sent[name] - local[name]) * scale - c) for name, c in control.items()}


def control_before(store: Store, run_key: str, taken: int, like: Controls) -> Controls:
    """Return c_i as the server knows it.

    Args:
        store: the client's memory.
        run_key: which run.
        taken: the last round whose change the server added; 0: none, so that c_i is zero.
        like: arrays whose names, shapes and dtypes c_i has.
    """
    variates = recall_before(store, CONTROL, run_key, taken + 1) if taken else {}
    return {name: variates[name] if variates else np.zeros_like(array) for name, array in like.items()}


def mean_control(total: Model, clients: int) -> Model:
    """Return c, the mean of N control variates, from their sum."""
    sums = {name: np.asarray(view(array)) for name, array in total.items()}
    return array_record({name: np.asarray(array / clients, array.dtype) for name, array in sums.items()})


@dataclass
class ControlledRound:
    """What a round gathers of models and control variates.

    These are the sum of all c_i before it, their changes, c as it is sent, and the joiners.

    Attributes:
        controls: the joiners' c_i, where influence is bounded; ``shares``: how much of each counts.
    """

    total: Model
    changes: WeightedSum
    control: Model
    joined: list[str] = field(default_factory=list)
    controls: dict[str, Model] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


class ControlInfluence(Influence):
    """Each client's control variate is bounded in place of its changes, which would add up."""

    def updates(self, round: Round, reply: Reply) -> Reply:
        """Return the reply with c_i in place of its change; raises as `control_after`."""
        if round.shared.influence != "bounded":
            return reply
        control: Model = self.algorithm.control_after(round, reply)
        round.carry.controls[reply.member.client_id] = control
        return replace(reply, records={CONTROL_DELTA: control})


class Scaffold(Strategy):
    """SCAFFOLD (Karimireddy et al., ICML 2020): control variates take the drift out of local steps."""

    name = "scaffold"
    reply_records = (CONTROL_DELTA,)
    influence = ControlInfluence

    class Settings(StrategySettings):
        """SCAFFOLD's settings."""

        server_lr: Positive = 1.0
        """eta_g, the server's learning rate"""

    settings: Settings

    class LocalRule(SGD):
        """SGD with ``c - c_i`` added to each gradient; sends the change of c_i besides the model."""

        name = "scaffold"
        knows_momentum = False
        """Option II is the mean of the gradients only where each moved the model by eta_l."""
        sends_model = False
        keeps_personal = False

        def __init__(self, settings: PluginSettings | None = None, correction: "Sequence[Tensor]" = ()) -> None:
            super().__init__(settings)
            self.correction = list(correction)
            """``c - c_i``, one tensor a trainable parameter."""

        def train(self, model: "nn.Module", problem: LocalProblem) -> None:
            """Train a model in place.

            Raises:
                ValueError: where the correction is not one tensor a trainable parameter.
            """
            import torch

            from client.training.descent import Tensors, descend, trainable

            if len(self.correction) != (expected := len(trainable(model))):
                raise ValueError(
                    f"SCAFFOLD's correction has {len(self.correction)} tensors, the model {expected} parameters"
                )

            def correct(gradients: Tensors, parameters: Tensors) -> Tensors:
                return torch._foreach_add(gradients, self.correction)

            descend(model, problem, [correct])

        @classmethod
        def batched_terms(cls, rules: Sequence[AnyRule], start: "Mapping[str, Tensor]") -> BatchedTerms | None:
            """Return the same correction for clients side by side."""
            corrections = stack_tensors([r.correction for r in rules if isinstance(r, Scaffold.LocalRule)], start)

            def correct(name: str, target: "Tensor", before: "Tensor", active: int, sign: float) -> None:
                target.add_(corrections[name][:active], alpha=sign)

            return BatchedTerms(correct)

        def reply(self, job: TrainingJob) -> dict[str, Model]:
            """Train with the correction, and return the local model and the change of c_i.

            Only trainable parameters have a control variate; the change of every other array is zero.

            Raises:
                ConfigError: where there is no local step.
                ValueError: if the message carries no control variate of this model.
            """
            import torch

            steps = job.training.steps(job.examples)
            if steps < 1:
                raise ConfigError(
                    "local-steps = 0 is not allowed with local-rule = 'scaffold' where local-epochs = 0"
                )
            sent = job.received(CONTROL)
            control: Controls = {name: sent[name] for name in job.trainable}
            taken = int(job.told.get(CONTROL_ROUND, job.server_round - 1))
            before = control_before(job.store, job.run_key, taken, control)
            correction = [torch.from_numpy(np.asarray(c - before[n])).to(job.device) for n, c in control.items()]
            local = job.train(Scaffold.LocalRule(self.settings, correction))
            delta = control_delta(job.arrays, local, control, steps, job.training.learning_rate)
            after = {name: np.asarray(before[name] + delta[name]) for name in control}
            remember_round(job, CONTROL, before, after)
            change = {name: delta.get(name, np.zeros_like(array)) for name, array in job.arrays.items()}
            return {keys.ARRAYS: job.pack(local), CONTROL_DELTA: job.pack(change)}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._sum: Model | None = None
        self._taken: dict[str, int] = {}
        self._controls: dict[str, dict[str, NDArray[Any]]] = {}
        self._shares: dict[str, float] = {}

    def begin(self, round: Round) -> None:
        """Begin: the model and the changes of the control variates are summed side by side.

        A bounded run that kept only the sum of the control variates begins with control variates of zero again.
        """
        if round.shared.influence == "bounded" and not self._shares:
            if self._taken:
                log.warning("the checkpoint has no client's control variate by itself: all begin with zero again")
            self._sum, self._taken = None, {}
        zeros = zeros_like(round.model)
        total = self._sum or zeros
        clients = {*round.members.of_role(SEEN), *self._taken}  # one that has gone still counts in the sum
        round.carry = ControlledRound(total, WeightedSum(zeros), mean_control(total, max(1, len(clients))))

    def wave(self, round: Round, members: Sequence[Member]) -> Instructions:
        """Send c, and tell each client which of its rounds c holds."""
        taken = {member.client_id: self._taken.get(member.client_id, 0) for member in members}
        to_each = {client: under_name(self.name, {CONTROL_ROUND: number}) for client, number in taken.items()}
        return Instructions(each=to_each, records={CONTROL: round.carry.control})

    def control_after(self, round: Round, reply: Reply) -> Model:
        """Return the c_i of which a reply has the change.

        Raises:
            Refused: if the change has another layout or a value that is not finite.
        """
        self._check(round, reply)
        before, change = self._controls.get(reply.member.client_id, {}), reply.records[CONTROL_DELTA]
        return array_record(
            {n: np.asarray(before.get(n, 0) + view(array), array.dtype) for n, array in change.items()}
        )

    def _check(self, round: Round, reply: Reply) -> CheckedModel:
        gathered: ControlledRound = round.carry
        try:
            return gathered.changes.check(reply.records[CONTROL_DELTA])
        except Refused as error:
            raise type(error)(f"{CONTROL_DELTA}: {error}") from None

    def add(self, round: Round, reply: Reply) -> None:
        """Take in a local model and its client's change of c_i.

        Or what counts of c_i, where it is bounded. Both are taken or neither.

        Raises:
            Refused: if one of them has another layout or a value that is not finite.
        """
        gathered: ControlledRound = round.carry
        client, record = reply.member.client_id, reply.records[CONTROL_DELTA]
        checked, share = self._check(round, reply), 1.0
        if (control := gathered.controls.get(client)) is not None:
            counts = log_norm(record, None)
            share = math.exp(counts - log_norm(control, None)) if counts > -math.inf else 0.0
            before, counted = self._controls.get(client, {}), self._shares.get(client, 0.0)
            change = {
                n: np.asarray(np.subtract(view(c), counted * before.get(n, 0)), c.dtype) for n, c in record.items()
            }
            checked = gathered.changes.check(array_record(change))
        super().add(round, reply)
        if control is not None:
            gathered.shares[client] = share
        gathered.changes.add_checked(checked, 1.0)
        gathered.joined.append(client)

    def finish(self, round: Round) -> Model | Kept:
        """Return ``x + eta_g mean (y_i - x)``, and keep the sum of all c_i; both or neither."""
        gathered: ControlledRound = round.carry
        if not round.sum.count:
            return KEEP_MODEL
        eta = self.settings.server_lr
        arrays = round.sum.combine(keep=1.0 - eta, scale=eta / round.sum.count)
        change = gathered.changes.combine(keep=0.0, scale=1.0)
        total = array_record({n: np.add(view(c), view(change[n])) for n, c in gathered.total.items()})
        if not (finite(arrays) and finite(total)):
            round.metrics["not_finite"] = 1.0
            return KEEP_MODEL
        self._sum = total
        self._taken |= dict.fromkeys(gathered.joined, round.number)
        self._shares |= gathered.shares
        for client in gathered.shares:
            self._controls[client] = {name: view(array) for name, array in gathered.controls[client].items()}
        return arrays

    def carried(self) -> dict[str, Any]:
        """Return the sum of the control variates, which rounds it holds, and, where influence is bounded, of whom."""
        taken = {"clients": list(self._taken), "rounds": list(self._taken.values())}
        shares = {"clients": list(self._shares), "values": list(self._shares.values())} if self._shares else {}
        controls = {
            f"{client}/{n}": array for client, control in self._controls.items() for n, array in control.items()
        }
        total = {} if self._sum is None else {name: view(array) for name, array in self._sum.items()}
        return {_TAKEN: taken, _SUM: total, _CONTROLS: controls, _SHARES: shares}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up the sum, the rounds and the control variates."""
        taken, shares = carried[_TAKEN], carried.get(_SHARES, {"clients": (), "values": ()})
        self._taken = dict(zip(taken["clients"], taken["rounds"], strict=True))
        self._sum = array_record(carried[_SUM]) if _SUM in carried else None
        self._shares = dict(zip(shares["clients"], shares["values"], strict=True))
        self._controls = {}
        for key, array in carried.get(_CONTROLS, {}).items():
            client, _, name = key.partition("/")
            self._controls.setdefault(client, {})[name] = array
