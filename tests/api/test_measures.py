"""Own losses and metrics: defaults, directions, and tasks that are no classification of single labels."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional

import fedappeal
from fedappeal.api.measures import MEAN_ABSOLUTE_ERROR, Measures
from fedappeal.api.program_task import GivenTask, MeasuredTask, given_task
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks.task import Task
from tests.api.blobs import QUICK, Net, in_folder, losses, pairs, side

__all__ = ["in_folder"]


def task(data: Any, model: Any, loss: Any = None, metrics: Any = None) -> GivenTask:
    clients = [fedappeal.ClientData(fedappeal.Split(*train), fedappeal.Split(*test)) for train, test in data]
    settings = RunConfig(task="own", clients=len(clients)).task_settings()
    return given_task(settings, clients, model, Measures.of(loss, metrics))


def test_classes_have_cross_entropy_and_accuracy_and_their_fast_path() -> None:
    made = task(pairs(), Net)
    assert type(made) is GivenTask
    assert made.metric == ACCURACY
    assert (made.num_classes, made.input_shape) == (2, (6,))


def test_a_loss_of_ones_own_has_a_sum_that_is_n_times_its_mean() -> None:
    made = task(pairs(labels="numbers"), lambda: Net(1), functional.mse_loss)
    outputs, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [0.0], [0.0]])
    assert type(made) is MeasuredTask
    assert float(made.loss(outputs, y)) == 7.0
    assert float(made.loss(outputs, y, reduction="sum")) == 21.0
    assert made.metric == MEAN_ABSOLUTE_ERROR
    assert made.metrics(outputs, y) == {"mean-absolute-error": pytest.approx(7 / 3)}


def worst(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).abs().max()


def test_names_and_directions_of_metrics() -> None:
    measures = Measures.of(functional.mse_loss, {Metric("worst", False, 0, 9): worst, "mean_error": worst})
    assert list(measures.by_name) == ["worst", "mean-error"]
    assert Metric("worst", False, 0, 9) in measures.metrics
    (alone,) = Measures.of(None, worst).metrics
    assert (alone.name, alone.higher_is_better, alone.low) == ("worst", True, float("-inf"))
    (named,) = Measures.of(None, {"accuracy": worst}).metrics
    assert named == ACCURACY
    with pytest.raises(ConfigError, match="metric = 'loss' is not allowed"):
        Measures.of(None, {"loss": worst})
    with pytest.raises(ConfigError, match=re.escape("metrics = ['a-b', 'a_b'] is not allowed: two are called 'a-b'")):
        Measures.of(None, {"a-b": worst, "a_b": worst})
    with pytest.raises(ConfigError, match="metric = 'lowest-f1' is not allowed: another number"):
        fedappeal.simulate(data=pairs(), model=Net, metrics={"f1": nearest, "lowest-f1": nearest}, **QUICK)


def nearest(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.argmax(1) == y).double().mean()


def test_a_loss_has_no_parameters_that_would_have_to_be_trained() -> None:
    loss = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"loss = Sequential is not allowed: .* \(0\.weight\)"):
        Measures.of(loss, worst)
    assert Measures.of(loss.requires_grad_(False), worst).loss is loss


@pytest.mark.parametrize(
    ("labels", "loss", "said"),
    [
        (torch.zeros(4, 1), None, "loss is missing: labels are float32 (1,) an example"),
        (torch.zeros(4, 3, dtype=torch.int64), None, "loss is missing: labels are int64 (3,) an example"),
        (torch.zeros(4, 3, dtype=torch.int64), nn.CrossEntropyLoss(), "metrics is missing: labels are int64"),
    ],
)
def test_labels_without_a_default_are_named(labels: Tensor, loss: Any, said: str) -> None:
    data = [((torch.zeros(4, 6), labels), (torch.zeros(4, 6), labels))]
    with pytest.raises(ConfigError, match=re.escape(said)):
        task(data, Net, loss)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_classifier_by_name_says_what_it_needs(model: str) -> None:
    x, y = side(8, 0)
    for inputs, labels, loss, needs in (
        (x, y.float(), None, "whole numbers as labels, no loss of your own"),
        (x, y, functional.cross_entropy, "whole numbers as labels, no loss of your own"),
        ({"a": x}, y, None, "rows or images as inputs"),
    ):
        with pytest.raises(ConfigError, match=f"model = '{model}' is not allowed: it needs {needs}; give a torch"):
            task([((inputs, labels), (inputs, labels))], model, loss)


def test_a_model_may_know_more_classes_than_the_labels_show() -> None:
    task(pairs(), nn.Linear(6, 5)).check()


# -- what does not fit is said before a run ------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "loss", "metrics", "said"),
    [
        (nn.Linear(5, 2), None, None, "calling the model failed: RuntimeError: "),
        (nn.Linear(6, 1), None, None, "model is not allowed: it has 1 outputs, the labels are 0 to 1"),
        (nn.ReLU(), None, None, "model is not allowed: it has no trainable parameter"),
        (Net, functional.mse_loss, {"m": worst}, "the loss failed"),
        (
            Net,
            lambda o, y: functional.cross_entropy(o, y, reduction="none"),
            None,
            "a tensor of shape (8,); the mean",
        ),
        (Net, lambda o, y: 1.0, None, "loss is not allowed: it returned float"),
        (Net, lambda o, y: torch.zeros(()), None, "does not depend on the model's parameters"),
        (Net, lambda o, y: o.mean() / 0, None, "of the initial model it is"),
        (Net, None, {"m": lambda o, y: o}, "the metrics failed"),
    ],
)
def test_what_does_not_fit_is_one_line(model: Any, loss: Any, metrics: Any, said: str) -> None:
    made = task(pairs(), model, loss, metrics)
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        made.check()
    assert "\n" not in str(refused.value)


def test_shapes_that_torch_would_combine_each_with_each_are_refused() -> None:
    flat = [((x, y[:, 0]), (tx, ty[:, 0])) for (x, y), (tx, ty) in pairs(labels="numbers")]
    with pytest.raises(ConfigError, match="Using a target size"):
        task(flat, lambda: Net(1), functional.mse_loss).check()
    with pytest.raises(ConfigError, match=re.escape("outputs of shape (8, 1) beside labels of shape (8,)")):
        task(flat, lambda: Net(1), lambda o, y: (o[:, 0] - y).square().mean()).check()


def test_the_check_leaves_torchs_generator_alone() -> None:
    made = task(pairs(), lambda: nn.Sequential(nn.Dropout(), nn.Linear(6, 2)))
    before = torch.random.get_rng_state()
    made.check()
    assert torch.equal(before, torch.random.get_rng_state())


# -- runs ----------------------------------------------------------------------------------------------

REGRESSION = (pairs(labels="numbers"), lambda: Net(1), functional.mse_loss, None)


def several_labels() -> Any:
    def labelled(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, (x[:, :3] > 0).float()

    return [(labelled(train[0]), labelled(test[0])) for train, test in pairs()]


def hamming(outputs: Tensor, y: Tensor) -> float:
    return float(((outputs > 0) == (y > 0.5)).double().mean())


class Tagger(nn.Module):
    """A tag for each of a sentence's tokens, with the classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.output = nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.output(self.embed(ids) * mask.unsqueeze(-1))
        return out


def sentences() -> Any:
    def drawn(seed: int, count: int) -> Any:
        ids = torch.randint(0, 10, (count, 7), generator=torch.Generator().manual_seed(seed))
        return {"ids": ids, "mask": torch.ones(count, 7)}, ids % 3

    return [(drawn(k, 16), drawn(50 + k, 6)) for k in range(3)]


def token_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), y.flatten())


def token_accuracy(outputs: Tensor, y: Tensor) -> float:
    return float((outputs.argmax(dim=-1) == y).double().mean())


def masks() -> Any:
    def drawn(seed: int, count: int) -> Any:
        x = torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
        return x, (x[:, 0] > 0).long()

    return [(drawn(k, 10), drawn(50 + k, 4)) for k in range(3)]


def overlap(outputs: Tensor, y: Tensor) -> float:
    found, there = outputs.argmax(dim=1) == 1, y == 1
    return float((found & there).sum() / (found | there).sum().clamp(min=1))


RUNS: dict[str, tuple[Any, Any, Any, Any]] = {
    "regression": REGRESSION,
    "multi-label": (several_labels(), lambda: Net(3), functional.binary_cross_entropy_with_logits, hamming),
    "tokens": (sentences(), Tagger, token_loss, {"token_accuracy": token_accuracy}),
    "segmentation": (masks(), lambda: nn.Conv2d(1, 2, 3, padding=1), nn.CrossEntropyLoss(), {"overlap": overlap}),
}
COLUMN = {"regression": "mean_absolute_error", "multi-label": "hamming", "tokens": "token_accuracy"}


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_learns_and_measures_by_its_own(kind: str) -> None:
    data, model, loss, metrics = RUNS[kind]
    run = fedappeal.simulate(
        "fedavg",
        data=data,
        model=model,
        loss=loss,
        metrics=metrics,
        evaluate=data[0][1],
        **QUICK | {"rounds": 4},
    )
    found = losses(run)
    assert found[-1] < found[0]
    column = COLUMN.get(kind, "overlap")
    assert run.metric.column == column
    # The history's number is the mean over clients of the trained model's, measured here by hand.
    x_of: Callable[[Any], Any] = lambda x: run.model()(**x) if isinstance(x, dict) else run.model()(x)  # noqa: E731
    measure = metrics or {"m": lambda o, y: (o - y).abs().mean()}
    measure = next(iter(measure.values())) if isinstance(measure, dict) else measure
    with torch.no_grad():
        values = [float(measure(x_of(x), y)) for _, (x, y) in data]
        mean_losses = [float(loss(x_of(x), y)) for _, (x, y) in data]
    assert run.history[column].iloc[-1] == pytest.approx(sum(values) / len(values), rel=1e-4)
    assert found[-1] == pytest.approx(sum(mean_losses) / len(mean_losses), rel=1e-4)
    assert run.history[f"central_{column}"].iloc[-1] == pytest.approx(values[0], rel=1e-4)
    assert run.clients[column].iloc[-len(data) :].tolist() == pytest.approx(values, rel=1e-4)


def test_lower_is_better_reaches_a_requirement(in_folder: None) -> None:
    data, model, loss, _ = REGRESSION
    reach = {"set": {"metric.reach": 1e9}}
    run = fedappeal.simulate(
        "fedavg", data=data, model=model, loss=loss, requirement="metric", **QUICK | reach | {"rounds": 1}
    )
    assert run.history["gm_appeal"].tolist() == [1.0]


def recall(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of class 1 that is found; no number where there is none."""
    return ((outputs.argmax(1) == 1) & (y == 1)).sum() / (y == 1).sum()


def strict(outputs: Tensor, y: Tensor) -> float:
    """The same, as a library that refuses one class."""
    if not bool((y == 1).any()):
        raise ValueError("only one class")
    return float(recall(outputs, y))


@pytest.mark.parametrize("how", [{"mode": "sequential"}, {"mode": "vmap"}])
def test_each_client_is_measured_on_all_its_data_and_a_metric_may_be_missing(
    how: dict[str, Any], in_folder: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of three examples, of which few have both classes; one client's test data have one class."""
    monkeypatch.setattr(Task, "evaluation_batch", 3)
    data = pairs()
    (train, (x, y)) = data[1]
    data[1] = (train, (x, torch.zeros_like(y)))
    weighted = nn.CrossEntropyLoss(torch.tensor([0.1, 5.0]))
    run = fedappeal.simulate(
        "fedavg",
        data=data,
        model=lambda: nn.Linear(6, 2),
        loss=weighted,
        metrics={"recall": recall, "strict": strict},
        evaluate=data[1][1],
        **QUICK | how | {"rounds": 1},
    )
    with torch.no_grad():
        of_clients = [(run.model()(x), y) for _, (x, y) in data]
    last, clients = run.history.iloc[-1], run.clients
    expected = [float(recall(outputs, y)) for outputs, y in of_clients]
    assert clients["recall"].tolist() == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert clients["strict"].tolist() == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert clients["loss"].tolist() == pytest.approx([float(weighted(o, y)) for o, y in of_clients], rel=1e-4)
    assert (last["evaluated"], last["recall_clients"], last["strict_clients"]) == (4, 3, 3)
    assert last["recall"] == pytest.approx(np.nanmean(expected), rel=1e-5)
    assert "central_loss" in last
    assert "central_recall" not in last
    assert run.summary()["recall_clients"] == 3


def test_predict_measures_all_rows_at_once_and_columns_of_numbers(in_folder: None) -> None:
    rng = np.random.default_rng(0)
    k = np.arange(600) % 3
    table = pd.DataFrame({"a": k + rng.normal(0, 1, 600), "who": [f"u{i % 2}" for i in range(600)], "kind": k})
    metrics = {"f1": lambda outputs, y: f1_score(y, outputs.argmax(1), average="macro")}
    told = {"data": table, "client": "who", "label": "kind", "model": "logistic", "metrics": metrics}
    run = fedappeal.simulate("fedavg", **told, **QUICK)
    table.sort_values("kind").to_csv("sorted.csv", index=False)
    said = run.predict("sorted.csv", label="kind")
    direct = f1_score(said["given"].astype(int), said["label"].astype(int), average="macro")
    assert said.attrs["metrics"]["f1"] == pytest.approx(direct)
    table["kind"] = table["a"] * 2.0
    table.to_csv("numbers.csv", index=False)
    columns = [((x[:, :1], 2 * x[:, :1]), (tx[:, :1], 2 * tx[:, :1])) for (x, _), (tx, _) in pairs()]
    for metric in (lambda o, y: (o - y).abs().max(), lambda o, y: (o.flatten() - y.flatten()).abs().max()):
        run = fedappeal.simulate(
            "fedavg",
            data=columns,
            model=nn.Linear(1, 1),
            loss=functional.mse_loss,
            metrics={fedappeal.Metric("worst", False, 0, 1e9): metric},
            **QUICK,
        )
        said = run.predict("numbers.csv", features=["a"], label="kind")
        error = np.abs(said["label"].astype(float) - said["given"].astype(float)).max()
        assert said.attrs["metrics"]["worst"] == pytest.approx(error, rel=1e-3)
