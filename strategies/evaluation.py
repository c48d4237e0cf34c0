"""What evaluation replies say together: GM-Appeal and unweighted averages over clients, seen and unseen apart."""

import math
from collections.abc import Iterable, Sequence

from flwr.app import MetricRecord

from fedappeal.protocol import keys
from fedappeal.protocol.keys import SEEN
from strategies.members import Member

_AVERAGED = {
    "gm_appeal": keys.APPEALED,
    "gm_appeal_train": keys.APPEALED_TRAIN,
    "accuracy": keys.ACCURACY,
    "loss": keys.LOSS,
    "preferred_accuracy": keys.PREFERRED_ACCURACY,
    "adapted_accuracy": keys.ADAPTED_ACCURACY,
    "adapted_loss": keys.ADAPTED_LOSS,
}


def summarise(replies: Iterable[tuple[Member, MetricRecord]]) -> dict[str, float]:
    """Average evaluation replies over clients, unweighted (MaxFL, Definition 1 and section 5).

    Returns:
        ``gm_appeal`` (share of clients with test loss < rho_k), ``gm_appeal_train``, ``accuracy``, ``loss``,
        ``preferred_accuracy``, ``adapted_accuracy`` and ``adapted_loss`` over the seen clients that reported each of
        them; the same with ``unseen_`` in front over the unseen ones.
    """
    values: dict[str, list[float]] = {}
    for member, metrics in replies:
        prefix = "" if member.role == SEEN else "unseen_"
        for name, key in _AVERAGED.items():
            if key in metrics:
                values.setdefault(prefix + name, []).append(float(metrics[key]))  # type: ignore[arg-type]
    return {name: _mean(v) for name, v in values.items()}


def _mean(values: Sequence[float]) -> float:
    """Return the mean of finite values; finite, though their sum may not be."""
    mean = sum(values) / len(values)
    if math.isfinite(mean):
        return mean
    # Divided first: less exact (ten times 0.1 is not 1), so for absurd claims only.
    return min(max(sum(v / len(values) for v in values), min(values)), max(values))
