"""Clients that attack, for experiments: MaxFL, section 5, "Robustness of MaxFL Against Byzantine Clients" (Table 2).

An attacker joins whenever it is asked. It lies about how badly the model serves it, to gain weight: ``inflate``
computes what it reports from an artificially large loss ``inflation * F_k(w)``; ``claim`` makes its weight up. And it
sends its model with Gaussian noise as large as its update: ``w_k + noise * rms(w_k - w) * N(0, 1)``, elementwise.
What it answers to EVALUATE is honest: that is how the experiment measures the model.
"""

import math

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedappeal.protocol import keys
from fedappeal.protocol.config import RunConfig
from fedappeal.protocol.draws import generator
from fedappeal.protocol.packing import view
from strategies.maxfl import appeal_weight
from strategies.maxfl_adagd import appeal_factor

_NOT_A_MODEL = frozenset({"gradient"})
"""Local rules whose reply is an update already: the noise is as large as what is sent."""


def attackers(seed: int, clients: int, share: float) -> frozenset[int]:
    """Return the partition-ids of the clients that attack: the first ``round(share * clients)`` of a seeded order.

    Only seen clients do. Who attacks at one share attacks at every larger one, so that two runs differ by the further
    attackers only.
    """
    order = generator(seed, "byzantine").permutation(clients)
    return frozenset(int(client) for client in order[: round(share * clients)])


def attacks(config: RunConfig, partition_id: int) -> bool:
    """Whether this client attacks in this run."""
    if not config.byzantine_share:
        return False
    return partition_id in attackers(config.seed, config.clients, config.byzantine_share)


def falsified(
    reply: Message, message: Message, config: RunConfig, client: str, loss: float, requirement: float
) -> Message:
    """Return what an attacker sends instead of its honest reply.

    Args:
        reply: the honest one; it joins.
        message: the TRAIN that it answers.
        config: the run's settings.
        client: the client-id.
        loss: F_k(w).
        requirement: rho_k.
    """
    told, content = message.content.config_records[keys.CONFIG], reply.content
    most = 1.0 if told.get(keys.MATCH_ON) == "error" else math.inf
    metrics = false_metrics(config, content.metric_records[keys.METRICS], loss, requirement, most)
    is_model = str(told.get(keys.LOCAL_RULE, "sgd")) not in _NOT_A_MODEL
    arrays = noisy(
        content.array_records[keys.ARRAYS],
        message.content.array_records[keys.ARRAYS] if is_model else None,
        config.byzantine_noise,
        generator(config.seed, "byzantine-noise", client=client, server_round=int(told[keys.SERVER_ROUND])),  # type: ignore[arg-type]
    )
    return Message(RecordDict({**content, keys.METRICS: metrics, keys.ARRAYS: arrays}), reply_to=message)


def false_metrics(
    config: RunConfig, metrics: MetricRecord, loss: float, requirement: float, most: float = math.inf
) -> MetricRecord:
    """Return what an attacker reports, where an honest client with this F_k(w) and rho_k reports ``metrics``.

    ``most`` is what a server believes at most where the loss it asked for is an error: a larger one would be refused.
    """
    lie = MetricRecord(dict(metrics))
    if config.byzantine_attack == "claim":
        if keys.APPEAL_WEIGHT in lie:
            lie[keys.APPEAL_WEIGHT] = config.byzantine_claim
        return lie
    inflated = config.byzantine_inflation * loss
    if keys.APPEAL_WEIGHT in lie:
        lie[keys.APPEAL_WEIGHT] = appeal_weight(inflated, requirement)
    if keys.SATISFIED in lie:
        lie[keys.SATISFIED] = int(inflated < requirement)
    if keys.MARGIN in lie:
        lie[keys.MARGIN] += appeal_factor(loss, requirement) * (inflated - loss)  # type: ignore[operator]
    if keys.LOSS in lie:  # or FedALIGN's error in its place
        lie[keys.LOSS] = min(most, config.byzantine_inflation * float(lie[keys.LOSS]))  # type: ignore[arg-type]
    return lie


def noisy(arrays: ArrayRecord, before: ArrayRecord | None, noise: float, draw: np.random.Generator) -> ArrayRecord:
    """Add Gaussian noise to the floating-point arrays of a reply.

    Args:
        arrays: w_k, or a gradient.
        before: w, with arrays of the same names and shapes; None for a gradient.
        noise: standard deviation of the noise, in root mean squares of the update ``w_k - w`` over all its values.
        draw: generator of the noise.
    """
    own = {name: view(array) for name, array in arrays.items()}
    floating = {name: _wide(v) for name, v in own.items() if np.issubdtype(v.dtype, np.floating)}
    updates = [v if before is None else v - _wide(view(before[name])) for name, v in floating.items()]
    size = sum(update.size for update in updates)
    scale = noise * (sum(float(np.vdot(u, u)) for u in updates) / size) ** 0.5 if size else 0.0
    return ArrayRecord({name: Array(_shaken(v, scale, draw) if name in floating else v) for name, v in own.items()})


def _shaken(values: NDArray[np.generic], scale: float, draw: np.random.Generator) -> NDArray[np.generic]:
    return (_wide(values) + scale * draw.standard_normal(values.shape)).astype(values.dtype)


def _wide(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
