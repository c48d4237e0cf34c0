"""A federation whose fixed points can be worked out by hand: client k's loss is ``F_k(w) = a_k / 2 (w - b_k)^2``.

The clients are the real ClientApp with full batches; the model is one float64 number.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor, nn

from client.app import Clients, app_of
from client.roster import Participants
from client.training.models import arrays_of
from client.training.task_learner import TaskLearners
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.tasks.task import ClientData, Split, Task
from strategies import Strategy
from tests.grid import Handler, MemoryGrid, time_of

CURVATURES = [1.0, 4.0, 2.0]
OPTIMA = [0.0, 1.0, -0.5]
RATE, STEPS = 0.1, 10


class Line(nn.Module):
    """``sqrt(a) (w - b)`` for inputs ``(a, b)``."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.double().unbind(dim=1)
        return (a.sqrt() * (self.w - b))[:, None]


class Quadratics(Task):
    """Each client's examples are all alike: (a_k, b_k)."""

    input_shape = (2,)
    num_classes = 1

    def initial_model(self, seed: int) -> nn.Module:
        return Line()

    def load(self, client: int) -> ClientData:
        x = torch.tensor([[CURVATURES[client], OPTIMA[client]]]).repeat(3, 1)
        return ClientData(Split(x, torch.zeros(3, dtype=torch.int64)), Split(x, torch.zeros(3, dtype=torch.int64)))

    def loss(self, logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        losses = logits[:, 0] ** 2 / 2
        return losses.mean() if reduction == "mean" else losses.sum()

    def metrics(self, logits: Tensor, y: Tensor) -> dict[str, float]:
        return {"accuracy": 0.0}


def config(clients: int, **settings: Scalar) -> RunConfig:
    plain: dict[str, Scalar] = {"task": f"{__name__}:Quadratics", "clients": clients, "participation": "always"}
    fixed: dict[str, Scalar] = {"requirement": "fixed", "learning-rate": RATE, "local-steps": STEPS, "batch-size": 3}
    return RunConfig.parse(plain | fixed | {k.replace("_", "-"): v for k, v in settings.items()})


def nodes(run: RunConfig, folder: Path | None = None) -> dict[int, Handler]:
    """The clients of a run by node id, 100 + k, as after a restart; their state is in memory, or in ``folder``.

    Their run's settings name no strategy, so that each message may.
    """
    app = app_of(Clients(Participants(TaskLearners())))
    settings = {key: value for key, value in run.as_config().items() if key != "strategy"}

    def node(k: int) -> Handler:
        own: dict[str, Scalar] = {"partition-id": k, "device": "cpu", "allow": "tests", "limits": "off"}
        if folder is not None:
            own["state-dir"] = str(folder / str(k))
        context = Context(7, 100 + k, dict(own), RecordDict(), settings)

        def answer(message: Message) -> Message:
            return app(message, context)

        return answer

    return {100 + k: node(k) for k in range(run.clients)}


def model(w: float = 0.0) -> ArrayRecord:
    line = Line()
    nn.init.constant_(line.w, w)
    arrays = arrays_of(line)
    return Layout.of(arrays).pack(arrays)


def value_of(arrays: ArrayRecord) -> float:
    (array,) = arrays.values()
    return float(array.numpy()[0])


def learned(strategy: Strategy, grid: MemoryGrid, rounds: int, run: RunConfig) -> float:
    """Run a federation from w = 0; return the last w."""
    told = ConfigRecord({keys.RUN_KEY: "k", "learning-rate": run.learning_rate, "batch-size": run.batch_size})
    told["local-steps"] = run.local_steps
    with time_of(grid):
        return value_of(strategy.start(grid, model(), rounds, train_config=told).arrays)


def optimum(clients: Sequence[int]) -> float:
    """The minimum of sum_k F_k: sum a_k b_k / sum a_k."""
    return sum(CURVATURES[k] * OPTIMA[k] for k in clients) / sum(CURVATURES[k] for k in clients)


def drifted(clients: Sequence[int]) -> float:
    """Where unweighted FedAvg stops: K steps take w to b_k + (1 - eta a_k)^K (w - b_k), so it is the mean of the
    b_k weighted by ``1 - (1 - eta a_k)^K``."""
    weights = {k: 1 - (1 - RATE * CURVATURES[k]) ** STEPS for k in clients}
    return sum(weights[k] * OPTIMA[k] for k in clients) / sum(weights.values())
