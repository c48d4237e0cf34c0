"""FedAvg: the average of the clients' models, weighted by their numbers of examples.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data". AISTATS 2017, Algorithm 1: ``w <- sum_k (n_k / n) w_k``.
"""

from flwr.app import ArrayRecord

from strategies.fold import WeightedSum
from strategies.replies import TrainReply
from strategies.volunteers import VolunteerStrategy


class FedAvg(VolunteerStrategy):
    """FedAvg's server, among volunteers: the average runs over those who joined."""

    def weight(self, reply: TrainReply) -> float:
        """Return n_k, the client's number of training examples."""
        return float(reply.num_examples)

    def update(self, folded: WeightedSum) -> tuple[ArrayRecord, dict[str, float]]:
        """Return the weighted average of the models."""
        return folded.combine(keep=0.0, scale=1.0 / folded.weight), {}
