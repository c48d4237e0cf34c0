"""GM-Appeal and the other means of a round: what clients measured of its model, averaged over clients."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedappeal.protocol import keys
from fedappeal.protocol.keys import SEEN
from fedappeal.protocol.metric import ACCURACY, Metric, column
from strategies.rounds.exchange.members import Member
from strategies.rounds.reply import claim

WORST_SHARE = 10
"""The worst decile is one client in ten, rounded up."""


def summarise(
    replies: Iterable[tuple[Member, Mapping[str, Any]]], metric: Metric = ACCURACY, others: Iterable[str] = ()
) -> dict[str, float]:
    """Average evaluation replies over clients, unweighted (MaxFL, Definition 1 and section 5).

    Args:
        replies: the clients' answers.
        metric: the task's primary metric; below it is ``accuracy``.
        others: names of the task's further metrics.

    Returns:
        ``gm_appeal`` (share of clients with test loss < rho_k), ``gm_appeal_train`` or ``gm_appeal_held_out`` (the
        same by what they judge models by), ``served`` (share of clients whose test metric is at least as good with
        the model as with their own), ``accuracy``, ``loss``,
        ``train_loss``, ``preferred_accuracy``, ``adapted_accuracy``, ``adapted_loss`` and the further metrics
        over the seen clients that reported each of them; of their accuracies also the mean over the tenth of the
        clients where it is worst (``worst_decile_accuracy``), the lowest and the highest (``lowest_accuracy``,
        ``highest_accuracy``); the same with ``unseen_`` in front over the unseen ones.
    """
    averaged = {
        "gm_appeal": keys.APPEALED,
        "gm_appeal_train": keys.APPEALED_TRAIN,
        "gm_appeal_held_out": keys.APPEALED_HELD_OUT,
        "served": keys.SERVED,
        metric.column: metric.name,
        "loss": keys.LOSS,
        "train_loss": keys.TRAIN_LOSS,
        f"preferred_{metric.column}": keys.PREFERRED + metric.name,
        f"adapted_{metric.column}": keys.ADAPTED + metric.name,
        "adapted_loss": keys.ADAPTED_LOSS,
        **{column(other): other for other in others},
    }
    values: dict[str, list[float]] = {}
    for member, metrics in replies:
        prefix = "" if member.role == SEEN else "unseen_"
        for name, key in averaged.items():
            if key in metrics and not isinstance(metrics[key], list):
                values.setdefault(prefix + name, []).append(claim(metrics, key))
    summary = {name: _mean(v) for name, v in values.items()}
    for prefix in ("", "unseen_"):
        if scores := metric.worst_first(values.get(prefix + metric.column, ())):
            worst = scores[: math.ceil(len(scores) / WORST_SHARE)]
            summary[f"{prefix}worst_decile_{metric.column}"] = _mean(worst)
            summary[f"{prefix}lowest_{metric.column}"] = min(scores)
            summary[f"{prefix}highest_{metric.column}"] = max(scores)
    return summary


def incomplete(
    replies: Iterable[tuple[Member, Mapping[str, Any]]], metric: Metric, others: Sequence[str]
) -> dict[str, float]:
    """Return how many clients could compute each metric that some could not: ``f1_clients``, ``unseen_f1_clients``.

    Args:
        replies: as in `summarise`; one with neither loss nor primary metric reports nothing.
        metric: the task's primary metric.
        others: names of the task's further metrics.
    """
    reporting, counts = Counter[str](), Counter[str]()
    columns = {name: column(name) for name in (metric.name, *others)}
    for member, metrics in replies:
        prefix = "" if member.role == SEEN else "unseen_"
        reporting[prefix] += keys.LOSS in metrics or metric.name in metrics
        for name, column_name in columns.items():
            counts[prefix + column_name] += name in metrics
    expected = {prefix + column_name: n for column_name in columns.values() for prefix, n in reporting.items()}
    return {f"{name}_clients": counts[name] for name, clients in expected.items() if 0 < counts[name] < clients}


def _mean(values: Sequence[float]) -> float:
    """Return the mean of finite values; finite, though their sum may not be."""
    mean = sum(values) / len(values)
    if math.isfinite(mean):
        return mean
    # Divided first: less exact (ten times 0.1 is not 1), so for absurd claims only.
    return min(max(sum(v / len(values) for v in values), min(values)), max(values))
