"""FedAvg over virtual clients with fluke: one side of `benchmarks/simulation.py`.

Runs in an environment of its own (`requirements.txt` beside this file) and knows nothing of fedappeal.
``python fluke_fl.py SETTING.pt`` prints one line of JSON.

The setting, in fluke's terms: `FedAVG` with ``weighted`` on, a `DummyDataContainer` for the fixed partition,
everything in memory, no live display. fluke's clients only know epochs; `Minibatches` is a loader whose one epoch
is as many random batches as the setting asks for. With ``evaluate_every`` the server's test set is the list of
all clients' test sets: fluke's evaluator takes such a list, and evaluates the new global model on each (accuracy
alone, no loss). A client's own evaluation in fluke covers only the clients of the round, which is why it is not
used.
"""

import os
import time

STARTED = time.perf_counter()
os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Iterator  # noqa: E402
from typing import Any  # noqa: E402

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402
from setting import Rounds, asked, drawn  # noqa: E402
from torch import Tensor  # noqa: E402
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
    """Tells the clock of fluke's rounds."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def start_round(self, round: int, global_model: Any) -> None:
        """Start."""
        self._rounds.begin()

    def end_round(self, round: int) -> None:
        """Note what the round took."""
        self._rounds.end()


def main() -> None:
    setting, rounds = asked(), Rounds(STARTED)
    environment = FlukeENV()
    environment.set_seed(setting.seed)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=bool(setting.evaluate_every))
    display = environment.get_live_renderer()
    display.auto_refresh, display.console.quiet = False, True

    classes = int(list(setting.model.parameters())[-1].numel())
    train = [Minibatches(x, y, classes, setting.batch_size, setting.local_steps) for x, y in setting.train]
    # A batch size of 0 stands for all examples at once.
    test = [FastDataLoader(x, y, num_labels=classes, batch_size=0, skip_singleton=False) for x, y in setting.test]
    accuracy = Accuracy(task="multiclass", num_classes=classes, average="micro", validate_args=False)
    environment.set_evaluator(
        ClassificationEval(eval_every=setting.evaluate_every or 1, n_classes=classes, accuracy=accuracy)
    )
    federation = FedAVG(
        n_clients=len(train),
        data_splitter=DataSplitter(
            DummyDataContainer(train, test, test if setting.evaluate_every else None, classes)
        ),
        hyper_params=DDict(
            model=setting.model,
            client=DDict(
                batch_size=setting.batch_size,
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=setting.learning_rate),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            ),
            server=DDict(weighted=True),
        ),
    )
    federation.set_callbacks(Clock(rounds))
    # fluke rounds the product of this share and the number of clients down.
    share = 1.0 if setting.clients_per_round == len(train) else (setting.clients_per_round + 0.5) / len(train)
    federation.run(n_rounds=setting.rounds, eligible_perc=share)

    rounds.report("fluke-fl", federation.server.model, setting.test)


if __name__ == "__main__":
    main()
