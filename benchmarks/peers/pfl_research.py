"""FedAvg over virtual clients with pfl-research's SimulatedBackend: one side of `benchmarks/simulation.py`.

Runs in an environment of its own (`requirements.txt` beside this file) and knows nothing of fedappeal.
``python pfl_research.py SETTING.pt`` prints one line of JSON.

The setting, in pfl's terms: `FederatedAveraging` weighted by data points, cohorts drawn uniformly without
replacement, all data in memory as tensors. pfl's own ``local_num_steps`` ends after one pass over a client's
examples, and its batches are the same slices every time; `Minibatches` lets ``iter`` hand out as many random
batches as asked for. With ``evaluate_every`` the val cohort holds every client, each with its test examples. pfl
ties this to the training clients' evaluation: these also evaluate on their training examples, before and after
training. pfl evaluates the model with which an iteration starts. It always evaluates in iteration 0: leave that one
out of the timing.
"""

import os
import time

STARTED = time.perf_counter()
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import logging  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByDatapoints  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from setting import Rounds, asked, drawn  # noqa: E402
from torch import Tensor, nn  # noqa: E402

WHOLE = 1 << 30
"""The batch size that stands for all of a client's examples: pfl evaluates in one batch then."""


class Classifier(nn.Sequential):
    """A model with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a training batch."""
        self.train()
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return the accuracy and the loss of a client's examples."""
        self.eval()
        logits = self(x)
        correct = int((logits.argmax(1) == y).sum())
        loss = float(nn.functional.cross_entropy(logits, y, reduction="sum"))
        return {"accuracy": Weighted(correct, len(y)), "loss": Weighted(loss, len(y))}


def cohorts(users: list[str], size: int, seed: int) -> Callable[[], str]:
    """Return a sampler of users in pfl's sense: every `size` calls draw uniformly without replacement."""

    def endless() -> Iterator[str]:
        rng = np.random.default_rng(seed)
        while True:
            yield from (users[k] for k in rng.choice(len(users), size, replace=False))

    users_drawn = endless()
    return lambda: next(users_drawn)


class Minibatches(PyTorchTensorDataset):
    """A client's training examples: training passes over as many random batches as the setting asks for."""

    def __init__(self, x: Tensor, y: Tensor, user_id: str, steps: int) -> None:
        super().__init__((x, y), user_id=user_id)
        self._steps = steps

    def iter(self, batch_size: int | None) -> Iterator[Any]:
        """Yield the batches of one training, or all examples to an evaluation."""
        if batch_size is None or batch_size >= WHOLE:
            yield from super().iter(batch_size)
            return
        x, y = self.raw_data
        for rows in drawn(len(self), self._steps, batch_size):
            yield [x[rows], y[rows]]


class Clock(TrainingProcessCallback[PyTorchModel]):
    """Tells the clock of pfl's central iterations."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start."""
        self._rounds.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note what the iteration took."""
        self._rounds.end()
        self._rounds.begin()
        return False, Metrics()


def main() -> None:
    setting, rounds = asked(), Rounds(STARTED)
    logging.getLogger().setLevel(logging.WARNING)
    torch.manual_seed(setting.seed)
    np.random.seed(setting.seed)

    module, users = Classifier(*setting.model), [str(k) for k in range(len(setting.train))]
    train = {
        k: Minibatches(*examples, k, setting.local_steps) for k, examples in zip(users, setting.train, strict=True)
    }
    test = {k: PyTorchTensorDataset(examples, user_id=k) for k, examples in zip(users, setting.test, strict=True)}
    backend = SimulatedBackend(
        training_data=FederatedDataset(train.__getitem__, cohorts(users, setting.clients_per_round, setting.seed)),
        val_data=FederatedDataset(test.__getitem__, get_user_sampler("minimize_reuse", users)),
        postprocessors=[WeightByDatapoints()],
    )
    # The central optimizer takes the averaged difference as its gradient: a step of 1 is plain averaging.
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=setting.rounds,
            evaluation_frequency=setting.evaluate_every or setting.rounds + 1,
            train_cohort_size=setting.clients_per_round,
            val_cohort_size=len(users) if setting.evaluate_every else 0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=setting.batch_size,
            local_num_epochs=None,
            local_num_steps=setting.local_steps,
            local_learning_rate=setting.learning_rate,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=WHOLE),
        callbacks=[Clock(rounds)],
        send_metrics_to_platform=False,
    )
    rounds.report("pfl", module, setting.test)


if __name__ == "__main__":
    main()
