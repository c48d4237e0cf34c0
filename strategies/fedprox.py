r"""FedProx: FedAvg whose clients stay near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks". MLSys 2020.

A client minimises, instead of its loss F_k (equation 2)::

    h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2

with w^t the model that was sent (`client.descent.prox`). Algorithm 2 samples clients with probabilities p_k = n_k / n
and averages their models unweighted; the paper's own code samples them uniformly and weights by n_k. This is the
second, because it is what FedAvg does here: mu = 0 is FedAvg, to the bit.
"""

import math
from typing import Unpack

from fedappeal.protocol.config import ConfigError, Scalar
from strategies.fedavg import FedAvg
from strategies.shared import Shared


class FedProx(FedAvg):
    """FedProx's server: FedAvg that asks for another local rule.

    Args:
        proximal_mu: mu, at least 0.
        shared: settings that all strategies share.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    local_rule = "prox"

    def __init__(self, *, proximal_mu: float, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        if not 0 <= proximal_mu < math.inf:
            raise ConfigError(f"proximal-mu = {proximal_mu} is not allowed: at least 0")
        self.proximal_mu = proximal_mu

    def train_settings(self) -> dict[str, Scalar]:
        """Tell the clients mu."""
        return {"proximal-mu": self.proximal_mu}
