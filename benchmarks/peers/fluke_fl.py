"""FedAvg over virtual clients with fluke: one side of `benchmarks/simulation.py`.

Runs in an environment of its own (`requirements.txt` beside this file) and knows nothing of fedappeal.
``python fluke_fl.py DATA.npz --model mlp --clients-per-round 5 --rounds 20 ...`` prints one line of JSON.

The setting, in fluke's terms: `FedAVG` with ``weighted`` on, a `DummyDataContainer` for the fixed partition,
everything in memory, no live display. fluke's clients only know epochs; `Minibatches` is a loader whose one epoch
is as many random batches as the setting asks for. With ``--evaluate-every`` the server's test set is the list of
all clients' test sets: fluke's evaluator takes such a list, and evaluates the new global model on each (accuracy
alone, no loss). A client's own evaluation in fluke covers only the clients of the round, which is why it is not
used.
"""

import os
import time

STARTED = time.perf_counter()
os.environ["OMP_NUM_THREADS"] = "1"

import json  # noqa: E402
from argparse import Namespace  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from importlib.metadata import version  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402
from setting import asked, drawn, layers  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torchmetrics import Accuracy  # noqa: E402


class Minibatches(FastDataLoader):
    """A client's training examples: one epoch passes over as many random batches as the setting asks for."""

    def __init__(self, x: Tensor, y: Tensor, num_classes: int, batch_size: int, steps: int) -> None:
        super().__init__(x, y, num_labels=num_classes, batch_size=batch_size)
        self._steps = steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.tensors
        for rows in drawn(self.size, self._steps, self.batch_size):
            yield x[rows], y[rows]

    def __len__(self) -> int:
        return self._steps


class Clock(FederationObserver):
    """Seconds and processor seconds of every round, its evaluation included."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.cpu: list[float] = []
        self.startup = 0.0

    def start_round(self, round: int, global_model: Any) -> None:
        """Start."""
        self._cpu_then, self._then = time.process_time(), time.perf_counter()
        self.startup = self.startup or self._then - STARTED

    def end_round(self, round: int) -> None:
        """Note what the round took."""
        self.rounds.append(time.perf_counter() - self._then)
        self.cpu.append(time.process_time() - self._cpu_then)


def read(args: Namespace) -> tuple[nn.Module, list[Minibatches], list[FastDataLoader]]:
    """Return the initial model, and each client's training and test examples."""
    with np.load(args.data) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    clients = [name[1:] for name in arrays if name.startswith("x")]
    parameters = [arrays[f"p{i}"] for i in range(sum(name.startswith("p") for name in arrays))]
    classes = len(parameters[-1])
    train = [
        Minibatches(arrays[f"x{k}"], arrays[f"y{k}"], classes, args.batch_size, args.local_steps) for k in clients
    ]
    test = [
        # A batch size of 0 stands for all examples at once.
        FastDataLoader(arrays[f"tx{k}"], arrays[f"ty{k}"], num_labels=classes, batch_size=0, skip_singleton=False)
        for k in clients
    ]
    model = nn.Sequential(*layers(args.model, tuple(train[0].tensors[0].shape[1:]), classes))
    with torch.no_grad():
        for parameter, initial in zip(model.parameters(), parameters, strict=True):
            parameter.copy_(initial)
    return model, train, test


def main() -> None:
    args = asked(__doc__)
    torch.set_num_threads(1)

    environment = FlukeENV()
    environment.set_seed(args.seed)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=bool(args.evaluate_every))
    display = environment.get_live_renderer()
    display.auto_refresh, display.console.quiet = False, True

    model, train, test = read(args)
    classes = train[0].num_labels
    accuracy = Accuracy(task="multiclass", num_classes=classes, average="micro", validate_args=False)
    environment.set_evaluator(
        ClassificationEval(eval_every=args.evaluate_every or 1, n_classes=classes, accuracy=accuracy)
    )
    federation = FedAVG(
        n_clients=len(train),
        data_splitter=DataSplitter(DummyDataContainer(train, test, test if args.evaluate_every else None, classes)),
        hyper_params=DDict(
            model=model,
            client=DDict(
                batch_size=args.batch_size,
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=args.learning_rate),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            ),
            server=DDict(weighted=True),
        ),
    )
    clock = Clock()
    federation.set_callbacks(clock)
    # fluke rounds the product of this share and the number of clients down.
    share = 1.0 if args.clients_per_round == len(train) else (args.clients_per_round + 0.5) / len(train)
    federation.run(n_rounds=args.rounds, eligible_perc=share)

    model = federation.server.model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in (loader.tensors for loader in test))
    result = {
        "name": f"fluke {version('fluke-fl')}",
        "version": version("fluke-fl"),
        "torch": torch.__version__,
        "round_seconds": clock.rounds,
        "cpu_seconds": clock.cpu,
        "startup_seconds": clock.startup,
        "accuracy": correct / sum(loader.size for loader in test),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
