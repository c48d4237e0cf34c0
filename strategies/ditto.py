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

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from client.training.sgd import SGD
from fedappeal.core.local_rule import BatchedTerms, LocalProblem, TrainingJob
from fedappeal.core.local_rule import LocalRule as AnyRule
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.store import Store
from fedappeal.settings.config import NonNegative, Scalar
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.rounds.algorithm import StrategySettings
from strategies.rounds.model import Model

if TYPE_CHECKING:
    from torch import Tensor, nn


Arrays = Mapping[str, NDArray[np.generic]]


def personal_model(store: Store, run_key: str, before: int) -> Arrays:
    """Return v_k as it was before a round; empty: there is none yet.

    Args:
        store: the client's memory.
        run_key: which run.
        before: the round.
    """
    record = store.read(_record_name(run_key))
    if record is None:
        return {}
    which = "after/" if int(record.values["round"]) < before else "before/"
    return {name.removeprefix(which): array for name, array in record.arrays.items() if name.startswith(which)}


def remember(store: Store, run_key: str, server_round: int, before: Arrays, after: Arrays) -> None:
    """Store v_k before and after a round, both or neither."""
    from fedappeal.core.store import Record

    arrays = {f"before/{name}": array for name, array in before.items()}
    arrays |= {f"after/{name}": array for name, array in after.items()}
    store.write(_record_name(run_key), Record({"round": server_round}, arrays))


def _record_name(run_key: str) -> str:
    return f"ditto-{run_key}"


class Personal(SGD):
    """SGD on ``F_k(v) + lambda/2 |v - w|^2``, from wherever the training starts."""

    name = "ditto-personal"
    keeps_personal = False

    def __init__(self, settings: PluginSettings, anchor: "Sequence[Tensor]") -> None:
        super().__init__(settings)
        self.anchor = list(anchor)
        """w, one tensor a trainable parameter."""

    def train(self, model: "nn.Module", problem: LocalProblem) -> None:
        """Train a model in place, with ``lambda (v - w)`` added to each gradient."""
        import torch

        from client.training.descent import Tensors, descend

        strength = self.settings.personal_lambda

        def pull(gradients: Tensors, parameters: Tensors) -> Tensors:
            return torch._foreach_add(gradients, torch._foreach_sub(parameters, self.anchor), alpha=strength)

        descend(model, problem, [pull])

    @classmethod
    def batched_terms(cls, rules: Sequence[AnyRule], start: "Mapping[str, Tensor]") -> BatchedTerms | None:
        """Return the same pull for clients side by side."""
        import torch

        strength = rules[0].settings.personal_lambda
        each = [rule.anchor for rule in rules if isinstance(rule, Personal)]
        stacked = {name: torch.stack([own[i] for own in each]) for i, name in enumerate(start)}

        def pull(name: str, target: "Tensor", before: "Tensor", active: int, sign: float) -> None:
            target.add_(before - stacked[name][:active], alpha=sign * strength)

        return BatchedTerms(pull, needs_before=True)


class Ditto(FedAvg):
    """Ditto (Li et al., ICML 2021): FedAvg, and a model of each client's own that is held near it."""

    name = "ditto"

    class Settings(StrategySettings):
        """Ditto's settings."""

        personal_lambda: NonNegative = Field(1.0, description="lambda, how strongly v_k is held near; 0: not at all")

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

            before = personal_model(job.store, job.run_key, job.server_round)
            anchor = [torch.tensor(job.arrays[name], device=job.device) for name in job.trainable]
            after = job.train(Personal(self.settings, anchor), before)
            remember(job.store, job.run_key, job.server_round, before, after)
            return super().reply(job)

    def use(self) -> tuple[AnyRule, Mapping[str, Scalar]]:
        """Return a round's steps of v from the model that was sent: FedProx's, with mu = lambda.

        The stored v_k would say little of the model: it beats training alone whatever is sent.
        """
        return FedProx.LocalRule(FedProx.Settings(proximal_mu=self.settings.personal_lambda)), {}

    def own_model(self, store: Store, run_key: str, before: int) -> Mapping[str, NDArray[Any]]:
        """Return v_k, by which a client is evaluated a second time."""
        return personal_model(store, run_key, before)
