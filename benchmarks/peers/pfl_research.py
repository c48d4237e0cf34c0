"""FedAvg over virtual clients with pfl-research's SimulatedBackend: one side of `benchmarks/simulation.py`.

Runs in an environment of its own (`requirements.txt` beside this file) and knows nothing of fedappeal.
``python pfl_research.py DATA.npz --model mlp --clients-per-round 5 --rounds 20 ...`` prints one line of JSON.

The setting, in pfl's terms: `FederatedAveraging` weighted by data points, cohorts drawn uniformly without
replacement, all data in memory as tensors. pfl's own ``local_num_steps`` ends after one pass over a client's
examples, and its batches are the same slices every time; `Minibatches` lets ``iter`` hand out as many random
batches as asked for. With ``--evaluate-every`` the val cohort holds every client, each with its test examples. pfl
ties this to the training clients' evaluation: these also evaluate on their training examples, before and after
training. pfl evaluates the model with which an iteration starts. It always evaluates in iteration 0: leave that one
out of the timing.
"""

import os
import time

STARTED = time.perf_counter()
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import json  # noqa: E402
import logging  # noqa: E402
from argparse import Namespace  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from importlib.metadata import version  # noqa: E402
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
from setting import asked, drawn, layers  # noqa: E402
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
    """Seconds and processor seconds of every central iteration."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.cpu: list[float] = []
        self.startup = 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start."""
        self._cpu_then, self._then = time.process_time(), time.perf_counter()
        self.startup = self._then - STARTED
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note what the iteration took."""
        cpu, now = time.process_time(), time.perf_counter()
        self.rounds.append(now - self._then)
        self.cpu.append(cpu - self._cpu_then)
        self._cpu_then, self._then = cpu, now
        return False, Metrics()


def read(args: Namespace) -> tuple[Classifier, dict[str, Minibatches], dict[str, PyTorchTensorDataset]]:
    """Return the initial model, and each user's training and test examples."""
    with np.load(args.data) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    users = [name[1:] for name in arrays if name.startswith("x")]
    train = {k: Minibatches(arrays[f"x{k}"], arrays[f"y{k}"], k, args.local_steps) for k in users}
    test = {k: PyTorchTensorDataset((arrays[f"tx{k}"], arrays[f"ty{k}"]), user_id=k) for k in users}
    parameters = [arrays[f"p{i}"] for i in range(sum(name.startswith("p") for name in arrays))]
    model = Classifier(*layers(args.model, tuple(arrays[f"x{users[0]}"].shape[1:]), len(parameters[-1])))
    with torch.no_grad():
        for parameter, initial in zip(model.parameters(), parameters, strict=True):
            parameter.copy_(initial)
    return model, train, test


def main() -> None:
    args = asked(__doc__)
    logging.getLogger().setLevel(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    module, train, test = read(args)
    users = list(train)
    backend = SimulatedBackend(
        training_data=FederatedDataset(train.__getitem__, cohorts(users, args.clients_per_round, args.seed)),
        val_data=FederatedDataset(test.__getitem__, get_user_sampler("minimize_reuse", users)),
        postprocessors=[WeightByDatapoints()],
    )
    # The central optimizer takes the averaged difference as its gradient: a step of 1 is plain averaging.
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=args.evaluate_every or args.rounds + 1,
            train_cohort_size=args.clients_per_round,
            val_cohort_size=len(users) if args.evaluate_every else 0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=args.batch_size,
            local_num_epochs=None,
            local_num_steps=args.local_steps,
            local_learning_rate=args.learning_rate,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=WHOLE),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    module.eval()
    with torch.no_grad():
        correct = sum(int((module(x).argmax(1) == y).sum()) for x, y in (data.raw_data for data in test.values()))
    result = {
        "name": f"pfl {version('pfl')}",
        "version": version("pfl"),
        "torch": torch.__version__,
        "round_seconds": clock.rounds,
        "cpu_seconds": clock.cpu,
        "startup_seconds": clock.startup,
        "accuracy": correct / sum(len(data) for data in test.values()),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
