r"""Ditto: FedAvg, and beside it a model of each client's own that is held near the global one.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization". ICML 2021. Client k's own
model solves::

    min_{v_k}  F_k(v_k) + lambda/2 |v_k - w*|^2

where w* is what the federation trains without regard to any v_k. After the authors' program (github.com/litian96/
ditto), a client that joins takes its local steps twice from the same minibatches::

    w_k <- w_k - eta grad F_k(w_k)                            from w; this is sent, as in FedAvg
    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w))       from where v_k was; this stays

v_k begins at the model that was sent in the first round that the client joins. lambda = 0 is training alone. The
global model is FedAvg's, to the bit, whatever lambda is.

A client that sits out leaves its v_k as it is; one that leaves for good keeps it. The client remembers v_k before and
after its latest round: a round that is run again begins as it did.
"""

from collections.abc import Mapping
from typing import Any

from client.training.sgd import SGD
from fedappeal.core.algorithm import PersonalModels
from fedappeal.core.local_rule import LocalRule as AnyRule
from fedappeal.core.local_rule import Store, TrainingJob, recall_before, remember_round
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, NonNegative, RunConfig, Scalar
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.rounds.round import Model
from strategies.rounds.strategy import StrategySettings

_KIND = "ditto"


class Personal(FedProx.LocalRule):
    """SGD on ``F_k(v) + lambda/2 |v - w|^2``, from wherever the training starts."""

    name = "ditto-personal"
    keeps_personal = False

    @property
    def strength(self) -> float:
        """The factor of the pull: lambda."""
        return float(self.settings.personal_lambda)


class OwnModels(PersonalModels):
    """Each client keeps v_k."""

    keeps_models = True

    def use(self) -> tuple[AnyRule, Mapping[str, Scalar]]:
        """Return a round's steps of v from the model that was sent: FedProx's, with mu = lambda.

        The stored v_k would say little of the model: it beats training alone whatever is sent.
        """
        return FedProx.LocalRule(FedProx.Settings(proximal_mu=self.settings.personal_lambda)), {}

    def own_model(self, store: Store, run_key: str, before: int) -> Arrays:
        """Return v_k, by which a client is evaluated a second time."""
        return recall_before(store, _KIND, run_key, before)


class Ditto(FedAvg):
    """Ditto (Li et al., ICML 2021): FedAvg, and personal models held near the global one."""

    name = "ditto"
    personal = OwnModels

    class Settings(StrategySettings):
        """Ditto's settings."""

        personal_lambda: NonNegative = 1.0
        """lambda, how strongly v_k is held near; 0: not at all"""

    @classmethod
    def check_run(cls, config: RunConfig, settings: Any) -> None:
        """Refuse steps that move away from the minimum of the pull alone, whatever convex loss they meet.

        Raises:
            ConfigError: names both settings.
        """
        strength, rate = settings.personal_lambda, config.learning_rate
        if rate * strength >= 2:
            raise ConfigError(
                f"ditto.personal-lambda = {strength:g} is not allowed with learning-rate = {rate:g}: less than "
                f"{2 / rate:g} (2 / learning-rate)"
            )

    class LocalRule(SGD):
        """SGD on the global model, which is sent, and on the client's own, which stays."""

        name = "ditto"
        batched = True
        keeps_personal = False

        def gradients(self, steps: int) -> int:
            """Return two for each local step."""
            return 2 * steps

        def reply(self, job: TrainingJob) -> dict[str, Model]:
            """Train v_k, remember it, and return the local model as SGD does."""
            import torch

            before = recall_before(job.store, _KIND, job.run_key, job.server_round)
            anchor = [torch.tensor(job.arrays[name], device=job.device) for name in job.trainable]
            after = job.train(Personal(self.settings, anchor), before)
            remember_round(job, _KIND, before, after)
            return super().reply(job)
