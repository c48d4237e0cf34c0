"""Clients that attack, for experiments: MaxFL, section 5, "Robustness of MaxFL Against Byzantine Clients" (Table 2).

An attacker joins whenever it is asked. It lies about how badly the model serves it, to gain weight: ``inflate``
computes what it reports from an artificially large loss ``inflation * F_k(w)``; ``claim`` makes its weight up. And it
sends its model with Gaussian noise as large as its update: ``w_k + noise * rms(w_k - w) * N(0, 1)``, elementwise.
What it answers to EVALUATE is honest: that is how the experiment measures the model.

An attacker is an honest client whose policy is to join, and whose outcomes are falsified before they are sent.

Three further attacks replace the model: ``zero`` sends zeros, ``huge`` 1e30 everywhere, ``flip`` its own update times
``byzantine-scale`` (-20). Each claims 10^12 examples, the largest weight it may, and priority.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from numpy.typing import NDArray

from client.app import Answer
from client.outcome import ANSWERED, JOINED, Metrics, Outcome
from client.participant import Participant
from client.participation.policies import Always
from client.roster import Participants
from client.settings import NodeSettings
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.requirement import Measured, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.draws import generator
from fedappeal.protocol.packing import array_record, model_of, view
from fedappeal.settings.config import RunConfig
from strategies.maxfl import APPEAL_WEIGHT
from strategies.maxfl_adagd import MaxFLAdaGD

REPLACEMENTS = ("zero", "huge", "flip")
"""Attacks that replace the model."""
CLAIMED_EXAMPLES = 10**12
"""Training examples that such an attacker claims: the most that the server believes."""
HUGE = 1e30
"""Finite in float32; its square is not."""


@lru_cache(maxsize=4)
def attackers(seed: int, clients: int, share: float) -> frozenset[int]:
    """Return the attacking clients' partition-ids.

    The first ``round(share * clients)`` of a seeded order.

    Only seen clients do. A client that attacks at one share attacks at every larger one, so that two runs differ by
    the further attackers only.
    """
    order = generator(seed, "byzantine").permutation(clients)
    return frozenset(int(client) for client in order[: round(share * clients)])


def attacks(config: RunConfig, partition_id: int) -> bool:
    """Whether this client attacks in this run."""
    if not config.byzantine_share or partition_id < 0:
        return False
    return partition_id in attackers(config.seed, config.clients, config.byzantine_share)


class Joins(Always):
    """An attacker's policy: to join, having measured the model that it lies about."""

    needs_loss = True


def kind_of(config: RunConfig, kind: Callable[..., Participant]) -> Callable[..., Participant]:
    """Return the maker of a run's participants, attackers among them.

    Args:
        config: the run's settings.
        kind: makes an honest one.
    """
    if not config.byzantine_share:
        return kind

    def made(run: RunConfig, node: NodeSettings, *arguments: Any) -> Participant:
        participant = kind(run, node, *arguments)
        if attacks(run, node.partition_id):
            participant.policy = Joins()
        return participant

    return made


@dataclass(frozen=True)
class Liars:
    """Clients some of which lie about what they have done.

    Attributes:
        honest: answers honestly.
        participants: the clients.
        config: the run's settings.
    """

    honest: Answer
    participants: Participants
    config: RunConfig

    def __call__(self, message: Message, context: Context) -> Outcome:
        """Answer a message; an attacker answers EVALUATE honestly."""
        outcome = self.honest(message, context)
        if outcome.told is None or not attacks(self.config, int(context.node_config["partition-id"])):
            return outcome
        if outcome.what == ANSWERED and self.config.byzantine_attack in REPLACEMENTS:
            return self._enrolment(outcome, outcome.told)
        if outcome.what == JOINED:
            return self._update(message, outcome, self.participants.of(context), outcome.told)
        return outcome

    @staticmethod
    def _enrolment(outcome: Outcome, told: Metrics) -> Outcome:
        """Return the answer to the roll call of an attacker that replaces the model."""
        info = outcome.records[keys.INFO]
        assert isinstance(info, ConfigRecord)
        info = ConfigRecord({**info, keys.PRIORITY: 1})
        return replace(outcome, told={**told, keys.NUM_EXAMPLES: CLAIMED_EXAMPLES}, records={keys.INFO: info})

    def _update(self, message: Message, outcome: Outcome, client: Participant, told: Metrics) -> Outcome:
        """Return the joined reply of an attacker."""
        config, strategy = self.config, client.strategy
        assert outcome.measured is not None
        assert outcome.requirement is not None
        honest = strategy.report(outcome.measured)
        of_every_reply = {key: told[key] for key in (keys.NUM_EXAMPLES, keys.DECISION)}
        false = false_claims(config, strategy, honest, outcome.measured, outcome.requirement)
        told = {**false, **of_every_reply}
        # A gradient is an update already.
        sent = None if client.terms.rule.sends_update else model_of(message.content)
        arrays = {name: record for name, record in outcome.records.items() if isinstance(record, ArrayRecord)}
        if config.byzantine_attack in REPLACEMENTS:
            told[keys.NUM_EXAMPLES] = CLAIMED_EXAMPLES
            for name, record in arrays.items():
                arrays[name] = replacement(config, record, sent if name == keys.ARRAYS else None)
        else:
            server_round = int(message.content[keys.CONFIG][keys.SERVER_ROUND])  # type: ignore[arg-type]
            who = client.client_id
            draw = generator(config.seed, "byzantine-noise", client=who, server_round=server_round)
            arrays[keys.ARRAYS] = noisy(arrays[keys.ARRAYS], sent, config.byzantine_noise, draw)
        return replace(outcome, told=told, records=arrays)


def false_claims(
    config: RunConfig,
    algorithm: ClientSide,
    honest: Mapping[str, float],
    measured: Measured,
    requirement: Requirement,
) -> Mapping[str, float]:
    """Return an attacker's report in place of the honest ``honest``.

    Args:
        config: the run's settings.
        algorithm: says what a client reports.
        honest: the honest report.
        measured: what the client measured.
        requirement: what it requires.
    """
    made_up = {APPEAL_WEIGHT: config.byzantine_claim} if APPEAL_WEIGHT in honest else {}
    if config.byzantine_attack == "claim":
        return {**honest, **made_up}
    lie, judged = (e.inflated(config.byzantine_inflation) for e in (measured.evaluation, measured.judged))
    if isinstance(algorithm, MaxFLAdaGD):  # whose gradient comes with the factor of the honest loss
        judged = measured.judged
    pretended = replace(measured, evaluation=lie, met=requirement.met(judged), judged=judged)
    false = algorithm.report(pretended)
    return false if config.byzantine_attack == "inflate" else {**false, **made_up}


def replacement(config: RunConfig, arrays: ArrayRecord, before: ArrayRecord | None) -> ArrayRecord:
    """Return the arrays with which an attacker replaces the model.

    Whole numbers stay as they are.

    Args:
        config: the run's settings.
        arrays: what it would send honestly.
        before: the model that it was sent; None where ``arrays`` is an update already.
    """
    sent: dict[str, NDArray[np.generic]] = {}
    for name, array in arrays.items():
        values = view(array)
        if not np.issubdtype(values.dtype, np.floating):
            sent[name] = values
        elif config.byzantine_attack == "flip":
            start = np.zeros(values.shape) if before is None else _wide(view(before[name]))
            sent[name] = (start + config.byzantine_scale * (_wide(values) - start)).astype(values.dtype)
        else:
            sent[name] = np.full_like(values, HUGE if config.byzantine_attack == "huge" else 0)
    return array_record(sent)


def noisy(arrays: ArrayRecord, before: ArrayRecord | None, noise: float, draw: np.random.Generator) -> ArrayRecord:
    """Add Gaussian noise to the floating-point arrays of a reply.

    Args:
        arrays: w_k, or a gradient.
        before: w, with arrays of the same names and shapes; None for a gradient.
        noise: standard deviation of the noise, in root mean squares of the update ``w_k - w`` over all its values.
        draw: generator of the noise.
    """
    values = {name: view(array) for name, array in arrays.items()}
    floating = {name: _wide(v) for name, v in values.items() if np.issubdtype(v.dtype, np.floating)}
    updates = [v if before is None else v - _wide(view(before[name])) for name, v in floating.items()]
    size = sum(update.size for update in updates)
    scale = noise * (sum(float(np.vdot(u, u)) for u in updates) / size) ** 0.5 if size else 0.0
    for name, exact in floating.items():
        values[name] = (exact + scale * draw.standard_normal(exact.shape)).astype(values[name].dtype)
    return array_record(values)


def _wide(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
