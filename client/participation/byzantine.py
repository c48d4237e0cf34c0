"""Clients that attack, for experiments: MaxFL, section 5, "Robustness of MaxFL Against Byzantine Clients" (Table 2).

An attacker joins whenever it is asked. It lies about how badly the model serves it, to gain weight: ``inflate``
computes what it reports from an artificially large loss ``inflation * F_k(w)``; ``claim`` makes its weight up. And it
sends its model with Gaussian noise as large as its update: ``w_k + noise * rms(w_k - w) * N(0, 1)``, elementwise.
What it answers to EVALUATE is honest: that is how the experiment measures the model.

Three further attacks replace the model: ``zero`` sends zeros, ``huge`` 1e30 everywhere, ``flip`` its own update times
``byzantine-scale`` (-20). Each claims 10^12 examples, the largest weight it may, and priority.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedappeal.core.algorithm import ClientSide
from fedappeal.core.requirement import Measured, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.draws import generator
from fedappeal.protocol.packing import array_record, model_of, view
from fedappeal.settings.config import RunConfig

REPLACEMENTS = ("zero", "huge", "flip")
"""Attacks that replace the model."""
CLAIMED_EXAMPLES = 10**12
"""Training examples that such an attacker claims: the most that the server believes."""
HUGE = 1e30
"""Finite in float32; its square is not."""


def attackers(seed: int, clients: int, share: float) -> frozenset[int]:
    """Return the partition-ids of the clients that attack: the first ``round(share * clients)`` of a seeded order.

    Only seen clients do. A client that attacks at one share attacks at every larger one, so that two runs differ by
    the further attackers only.
    """
    order = generator(seed, "byzantine").permutation(clients)
    return frozenset(int(client) for client in order[: round(share * clients)])


def attacks(config: RunConfig, partition_id: int) -> bool:
    """Whether this client attacks in this run."""
    if not config.byzantine_share:
        return False
    return partition_id in attackers(config.seed, config.clients, config.byzantine_share)


def falsify_enrolment(config: RunConfig, partition_id: int, reply: Message) -> None:
    """Make an answer to the roll call one of an attacker that replaces the model, where the client is one."""
    if config.byzantine_attack in REPLACEMENTS and attacks(config, partition_id):
        info, metrics = reply.content[keys.INFO], reply.content[keys.METRICS]
        assert isinstance(info, ConfigRecord)
        assert isinstance(metrics, MetricRecord)
        info[keys.PRIORITY], metrics[keys.NUM_EXAMPLES] = 1, CLAIMED_EXAMPLES


def falsify(config: RunConfig, client: str, server_round: int, reply: Message, sent: ArrayRecord | None) -> None:
    """Make an honest client's reply to TRAIN one of an attacker.

    Args:
        config: the run's settings.
        client: the client-id.
        server_round: counted from 1.
        reply: a joined reply; its claims are false already.
        sent: the model that it was sent; None where the reply is an update already.
    """
    if config.byzantine_attack not in REPLACEMENTS:
        draw = generator(config.seed, "byzantine-noise", client=client, server_round=server_round)
        reply.content[keys.ARRAYS] = noisy(model_of(reply.content), sent, config.byzantine_noise, draw)
        return
    metrics = reply.content[keys.METRICS]
    assert isinstance(metrics, MetricRecord)
    metrics[keys.NUM_EXAMPLES] = CLAIMED_EXAMPLES
    for name, record in list(reply.content.items()):
        if isinstance(record, ArrayRecord):
            reply.content[name] = replacement(config, record, sent if name == keys.ARRAYS else None)


def false_claims(
    config: RunConfig,
    algorithm: ClientSide,
    honest: Mapping[str, float],
    measured: Measured,
    requirement: Requirement,
) -> Mapping[str, float]:
    """Return what an attacker reports where an honest client reports ``honest``.

    Args:
        config: the run's settings.
        algorithm: says what a client reports.
        honest: the honest report.
        measured: what the client measured.
        requirement: what it requires.
    """
    made_up = {algorithm.weight_claim: config.byzantine_claim} if algorithm.weight_claim in honest else {}
    if config.byzantine_attack == "claim":
        return {**honest, **made_up}
    lie, judged = (e.inflated(config.byzantine_inflation) for e in (measured.evaluation, measured.judged))
    pretended = replace(measured, evaluation=lie, met=requirement.met(judged), judged=judged)
    false = algorithm.false_report(measured, pretended)
    return false if config.byzantine_attack == "inflate" else {**false, **made_up}


def replacement(config: RunConfig, arrays: ArrayRecord, before: ArrayRecord | None) -> ArrayRecord:
    """Return what an attacker sends that replaces the model; whole numbers stay as they are.

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
