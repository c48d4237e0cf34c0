"""The keywords of Flower's FedAvg, with their meaning there.

They say whom a round asks, and the names on the wire.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from fedappeal.protocol import keys
from fedappeal.protocol.packing import LONGEST_KEY, MOST_METRICS
from fedappeal.settings.config import ConfigError, CountOrZero, Settings, Share
from strategies.rounds.shared import SharedSettings

if TYPE_CHECKING:
    from flwr.app import MetricRecord, RecordDict

_OURS = {keys.DECISION, keys.TRAIN_LOSS, keys.ADAPTED_LOSS, *keys.APPEALS}
Aggregate = Callable[[list["RecordDict"], str], "MetricRecord"]
"""Flower's: replies with their MetricRecords alone, and the name of the weight in these."""


class FlowerKeywords(Settings):
    """Keywords of ``flwr.serverapp.strategy.FedAvg``; what is not given is as our settings say.

    Attributes:
        fraction_train: share of the available clients whose joining ends a round.
        fraction_evaluate: share of the connected clients that are asked to evaluate; 0: none.
        min_train_nodes: the fewest of the first.
        min_evaluate_nodes: the fewest of the second.
        min_available_nodes: clients without which round 1 does not begin; not given: ``min_clients``.
        weighted_by_key: of a reply's number by which models and metrics are averaged.
        arrayrecord_key: name of the model in messages.
        configrecord_key: name of the configuration in messages.
        train_metrics_aggr_fn: makes the round's metrics of the joined replies; None: their weighted means.
        evaluate_metrics_aggr_fn: the same of the answers to EVALUATE.
    """

    fraction_train: Share = 1.0
    fraction_evaluate: Share = 1.0
    min_train_nodes: CountOrZero = 0
    min_evaluate_nodes: CountOrZero = 0
    min_available_nodes: CountOrZero = 0
    weighted_by_key: str = keys.NUM_EXAMPLES
    arrayrecord_key: str = keys.ARRAYS
    configrecord_key: str = keys.CONFIG
    train_metrics_aggr_fn: Any = None
    evaluate_metrics_aggr_fn: Any = None

    def least_clients(self) -> int:
        """Return the number of clients without which no round begins.

        0 where no keyword says it.
        """
        return max(self.min_train_nodes, self.min_evaluate_nodes, self.min_available_nodes)

    def number_training(self, available: int) -> int:
        """Return after how many joiners a round ends.

        0 where the round asks all clients.
        """
        if self.fraction_train == 1:
            return 0
        return max(int(self.fraction_train * available), self.min_train_nodes, 1)

    def number_evaluating(self, connected: int) -> int:
        """Return how many connected clients evaluate, as FedAvg rounds it."""
        if not self.fraction_evaluate:
            return 0
        return min(connected, max(int(self.fraction_evaluate * connected), self.min_evaluate_nodes))

    def check(self, shared: SharedSettings) -> None:
        """Check that no other keyword says the same.

        Raises:
            ConfigError: one does.
        """
        if not self.fraction_train:
            raise ConfigError("fraction-train = 0 is not allowed: more than 0, because each round trains")
        if self.fraction_train != 1 and shared.clients_per_round:
            raise ConfigError(
                f"fraction-train = {self.fraction_train:g} is not allowed together with clients-per-round = "
                f"{shared.clients_per_round}: one of them says how many clients a round trains"
            )


def numbers_of(metrics: Mapping[str, Any], claimed: Set[str] = frozenset()) -> dict[str, Any]:
    """Return the numbers, and lists of them, that an app tells: as many as are bounded, and none that is a claim."""
    numbers = {k: v for k, v in metrics.items() if k not in _OURS | claimed}
    return {k: v for k, v in list(numbers.items())[:MOST_METRICS] if len(k) <= LONGEST_KEY}


def averaged_metrics(
    replies: Sequence[Mapping[str, Any]], weighted_by: str, aggregate: Aggregate | None
) -> dict[str, Any]:
    """Return the metrics of a round, as Flower's FedAvg makes them of the numbers that its replies tell.

    Args:
        replies: the numbers of each reply.
        weighted_by: which of them is the weight; where a reply has none, its number of examples is.
        aggregate: Flower's own kind of function; None: the weighted mean of each number that all replies have, and by
            place of each list that is equally long in all.
    """
    if not replies:
        return {}
    if aggregate is not None:
        from flwr.app import MetricRecord, RecordDict

        contents = [RecordDict({keys.METRICS: MetricRecord(dict(reply))}) for reply in replies]
        return dict(aggregate(contents, weighted_by))
    weights = [reply.get(weighted_by, reply.get(keys.NUM_EXAMPLES, 0)) for reply in replies]
    total = sum(weights)
    common = set.intersection(*({(k, _length(v)) for k, v in reply.items()} for reply in replies))
    if not total:
        return {}

    def mean(values: Sequence[float]) -> float:
        return float(sum(w * v for w, v in zip(weights, values, strict=True)) / total)

    means: dict[str, Any] = {}
    for key, value in replies[0].items():
        if key in (weighted_by, keys.NUM_EXAMPLES) or (key, _length(value)) not in common:
            continue
        told = [reply[key] for reply in replies]
        means[key] = [mean(at) for at in zip(*told, strict=True)] if isinstance(value, list) else mean(told)
    return means


def _length(value: object) -> int:
    """Return the length of a list; -1 of a number."""
    return len(value) if isinstance(value, list) else -1
