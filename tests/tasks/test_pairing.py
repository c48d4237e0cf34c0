"""Outputs and labels of shapes that torch combines each with each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedappeal.api.measures import MEAN_ABSOLUTE_ERROR, Measures
from fedappeal.api.program_task import given_task
from fedappeal.protocol.metric import ACCURACY
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks.fit import check_fit
from fedappeal.tasks.task import ClientData, Split, Task

X = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
PRICE = X @ torch.tensor([2.0, -1.0])


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x)[:, 0]
        return out


def column() -> nn.Module:
    return nn.Linear(2, 1)


def task(net: Callable[[], nn.Module], y: Tensor, loss: Any, metrics: Any = None) -> Any:
    split = Split(X, y)
    settings = RunConfig(task="own", clients=1).task_settings()
    return given_task(settings, [ClientData(split, split)], net, Measures.of(loss, metrics))


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    return ((outputs - y) ** 2).mean()


def squeezed(outputs: Tensor, y: Tensor) -> Tensor:
    return squared(outputs.flatten(), y.flatten())


def rounded(outputs: Tensor, y: Tensor) -> Tensor:
    return ((outputs > 0) == (y == 1)).double().mean()


@pytest.mark.parametrize(
    ("net", "y", "loss", "metrics", "said"),
    [
        (column, PRICE, squared, None, r"loss is not allowed: .* outputs are \(n, 1\) and labels \(n,\)"),
        (
            column,
            PRICE,
            functional.mse_loss,
            None,
            r"the loss failed: .* y is float32 \(\), outputs are float32 \(1,\)",
        ),
        (
            column,
            PRICE,
            squeezed,
            None,
            r"the metrics failed: .* outputs of shape \(8, 1\) beside labels of shape \(8,\)",
        ),
        (Flat, PRICE[:, None], squared, None, r"loss is not allowed: .* outputs are \(n,\) and labels \(n, 1\)"),
        (column, (PRICE > 0).long(), squared, squeezed, r"loss is not allowed: .* outputs are \(n, 1\)"),
        (column, PRICE, squeezed, {"rmse": squared}, r"metric 'rmse' is not allowed: .* labels \(n,\)"),
        (column, (PRICE > 0).float(), squeezed, {"right": rounded}, r"metric 'right' is not allowed"),
    ],
)
def test_a_loss_or_metric_that_combines_each_with_each_is_refused(
    net: Any, y: Tensor, loss: Any, metrics: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        task(net, y, loss, metrics).check()


def pairwise(outputs: Tensor, y: Tensor) -> Tensor:
    """A ranking loss, which compares all pairs on purpose."""
    ahead = outputs - outputs.flatten()
    return functional.softplus(-ahead * torch.sign(y[:, None] - y)).mean()


@pytest.mark.parametrize("loss", [squeezed, pairwise, lambda outputs, y: outputs.square().mean()])
def test_functions_that_mean_what_they_do_are_taken(loss: Any) -> None:
    task(column, PRICE, loss, {"mean": lambda outputs, y: (outputs - y).mean()}).check()


def test_a_plug_in_is_checked_alike() -> None:
    class Prices(Task):
        name = "prices"

        def initial_model(self, seed: int) -> nn.Module:
            return column()

        def load(self, client: int) -> ClientData:
            return ClientData(Split(X, PRICE), Split(X, PRICE))

        def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
            return squared(outputs, y)

    with pytest.raises(ConfigError, match=r"outputs are \(n, 1\) and labels \(n,\)"):
        check_fit(Prices(RunConfig(task="prices", clients=1).task_settings()), 0)


BOTH = (PRICE > 0).float()


@pytest.mark.parametrize(
    ("y", "loss", "net"),
    [
        (BOTH, nn.BCEWithLogitsLoss(), Flat),
        (BOTH[:, None], nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), column),
        (BOTH, lambda o, y: functional.binary_cross_entropy_with_logits(o[:, 0], y), column),
        (BOTH.long(), lambda o, y: functional.binary_cross_entropy_with_logits(o.flatten(), y.float()), column),
        (BOTH, lambda o, y: functional.binary_cross_entropy(o.sigmoid(), y), Flat),
    ],
)
def test_one_logit_and_binary_cross_entropy_have_accuracy(y: Tensor, loss: Any, net: Any) -> None:
    made = task(net, y, loss)
    made.check()
    assert made.metric == ACCURACY
    outputs = torch.tensor([0.3, -2.0, 0.1, -0.1]).view(4, *y.shape[1:])
    labels = torch.tensor([1.0, 1.0, 0.0, 0.0]).view(4, *y.shape[1:])
    assert made.metrics(outputs, labels) == {"accuracy": 0.5}


def test_shares_are_divided_at_a_half_and_other_losses_keep_the_error() -> None:
    class Share(Flat):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sigmoid()

    made = task(Share, BOTH, nn.BCELoss())
    assert made.metrics(torch.tensor([0.4, 0.6]), torch.tensor([1.0, 1.0])) == {"accuracy": 0.5}
    assert task(Flat, BOTH, nn.MSELoss()).metric == MEAN_ABSOLUTE_ERROR
    assert task(Flat, PRICE, nn.BCEWithLogitsLoss()).metric == MEAN_ABSOLUTE_ERROR
    with pytest.raises(ConfigError, match="one output an example names no class"):
        task(column, BOTH.long(), squeezed).check()
