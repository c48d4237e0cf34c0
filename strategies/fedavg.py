"""FedAvg: the average of the clients' models, weighted by their numbers of examples.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data". AISTATS 2017, Algorithm 1: ``w <- sum_k (n_k / n) w_k``.
"""

from strategies.rounds.round import Reply
from strategies.rounds.strategy import Strategy


class FedAvg(Strategy):
    """FedAvg (McMahan et al., AISTATS 2017): the average of the joined clients' models, by examples."""

    name = "fedavg"
    averages = True

    def weight(self, reply: Reply) -> float:
        """Return n_k, the client's number of training examples."""
        return float(reply.num_examples)
