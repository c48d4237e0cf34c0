"""Measures of a client's examples that come in pieces, against scikit-learn and torch on all of them at once."""

import pickle
from collections import namedtuple
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score, r2_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

import fedappeal
from client.training.models import evaluate, mean_gradient
from fedappeal.api.measures import Measures
from fedappeal.api.program_task import GivenTask, given_task
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.tasks import measuring
from fedappeal.tasks.fit import check_fit
from fedappeal.tasks.measuring import Evaluator
from fedappeal.tasks.task import ClientData, Split, Task

WEIGHTS = torch.tensor([0.1, 5.0, 1.0])
N = 101


def examples(seed: int = 0) -> Split:
    """Return examples of three classes in the order of their labels: pieces of them are not like the whole."""
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(seed))
    return Split(x, (torch.arange(N) * 3) // N)


DATA = examples()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(4, 3)


def f1(outputs: Tensor, y: Tensor) -> Any:
    return f1_score(y, outputs.argmax(1), average="macro")


def auc(outputs: Tensor, y: Tensor) -> Any:
    return roc_auc_score(y, outputs.softmax(1), multi_class="ovr")


def rmse(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(outputs[:, 0], y.float()).sqrt()


def worst(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs[:, 0] - y).abs().max()


def determined(outputs: Tensor, y: Tensor) -> Any:
    return r2_score(y, outputs[:, 0])


class Recall:
    """The recall of class 1, with torchmetrics' interface."""

    higher_is_better = True

    def __init__(self) -> None:
        self.right = torch.tensor(7)  # what an earlier use left
        self.all = 9

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.right = self.right + ((preds.argmax(1) == 1) & (target == 1)).sum()
        self.all += int((target == 1).sum())

    def compute(self) -> Tensor:
        return self.right / self.all

    def reset(self) -> None:
        self.right, self.all = torch.tensor(0), 0


METRICS = {"f1": f1, "auc": auc, "rmse": rmse, "worst": worst, "r2": determined, "recall": Recall()}


def task(loss: Any = None, metrics: Any = None, data: Split = DATA, clients: int = 1, net: Any = model) -> GivenTask:
    settings = RunConfig(task="own", clients=clients).task_settings()
    return given_task(settings, [ClientData(data, data)] * clients, net, Measures.of(loss, metrics))


def in_pieces(of: Task, size: int = 7) -> Task:
    of.evaluation_batch = size
    return of


def test_metrics_and_weighted_losses_are_those_of_all_examples_at_once() -> None:
    measured = evaluate(in_pieces(task(nn.CrossEntropyLoss(WEIGHTS), METRICS)), model(), DATA)
    with torch.no_grad():
        outputs = model()(DATA.x)
    hits = (outputs.argmax(1) == 1) & (DATA.y == 1)
    expected = {name: float(metric(outputs, DATA.y)) for name, metric in METRICS.items() if name != "recall"}  # type: ignore[operator]
    expected["recall"] = float(hits.sum() / (DATA.y == 1).sum())
    assert {"f1": measured.score, **measured.others} == pytest.approx(expected, rel=1e-5)
    assert measured.loss == pytest.approx(float(functional.cross_entropy(outputs, DATA.y, WEIGHTS)), rel=1e-5)


def test_a_metric_object_begins_anew_with_each_client_and_travels_to_workers() -> None:
    given = in_pieces(pickle.loads(pickle.dumps(task(metrics=Recall()))))
    first = evaluate(given, model(), DATA).score
    other = examples(9)
    with torch.no_grad():
        right = ((model()(other.x).argmax(1) == 1) & (other.y == 1)).sum() / (other.y == 1).sum()
    assert evaluate(given, model(), other).score == pytest.approx(float(right))
    assert evaluate(given, model(), DATA).score == first != float(right)


class Weighted(Task):
    """A stranger's task: its loss is a weighted mean, its metric a maximum."""

    name = "weighted"
    num_classes, input_shape = 3, (4,)
    metric = fedappeal.Metric("worst", False, 0, float("inf"))

    def initial_model(self, seed: int) -> nn.Module:
        return model()

    def load(self, client: int) -> ClientData:
        return ClientData(DATA, DATA)

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
        return functional.cross_entropy(outputs, y, WEIGHTS) * (len(y) if reduction == "sum" else 1)

    def metrics(self, outputs: Any, y: Any) -> dict[str, float]:
        return {"worst": float(worst(outputs, y))}


def test_a_task_that_overrides_loss_or_metrics_is_no_mean_unless_it_says_so() -> None:
    class Said(Weighted):
        loss_is_mean = True

        def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
            return functional.cross_entropy(outputs, y, reduction=reduction)

    class Mixin:
        def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
            raise NotImplementedError

    class Mixed(Mixin, Task):  # type: ignore[misc]
        name = "mixed"

    flags = [(kind.loss_is_mean, kind.metrics_are_means) for kind in (Weighted, Said, Mixed)]
    assert flags == [(False, False), (True, False), (False, True)]
    made = in_pieces(Weighted(TaskSettings(task="weighted")))
    measured = evaluate(made, model(), DATA)
    with torch.no_grad():
        outputs = model()(DATA.x)
    assert measured.loss == pytest.approx(float(functional.cross_entropy(outputs, DATA.y, WEIGHTS)), rel=1e-5)
    assert measured.score == pytest.approx(float(worst(outputs, DATA.y)))


def test_the_gradient_of_a_loss_that_is_no_mean_is_that_of_all_examples() -> None:
    net = model()
    expected = torch.autograd.grad(functional.cross_entropy(net(DATA.x), DATA.y, WEIGHTS), list(net.parameters()))
    got = mean_gradient(in_pieces(task(nn.CrossEntropyLoss(WEIGHTS))), net, DATA)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_outputs_beyond_the_bound_are_refused_and_a_loss_that_says_it_is_a_mean_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "MOST_BYTES", 50 * 3 * 4)
    mean = nn.CrossEntropyLoss()
    mean.is_mean = True  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"need all outputs of a client at once: 0\.0 GiB, .*loss\.is_mean = True"):
        evaluate(in_pieces(task(nn.CrossEntropyLoss())), model(), DATA)
    with pytest.raises(ConfigError, match="need all outputs"):
        task(metrics=f1).check()
    bounded = in_pieces(task(mean, Recall()))
    bounded.check()
    with torch.no_grad():
        direct = float(functional.cross_entropy(model()(DATA.x), DATA.y))
    assert evaluate(bounded, model(), DATA).loss == pytest.approx(direct, rel=1e-5)


def test_sparse_outputs_count_as_dense() -> None:
    assert measuring.bytes_of({"sparse": torch.eye(3).to_sparse(), "dense": torch.ones(2)}) == 4 * (9 + 2)


def test_outputs_of_any_form_are_joined_and_others_named() -> None:
    pair = namedtuple("pair", "logits extra")

    def joined(form: Any) -> Evaluator:
        measurement = Evaluator(task(metrics={"worst": lambda outputs, y: float(len(y))}), with_loss=False)
        for piece in (DATA.take(slice(0, 60)), DATA.take(slice(60, N))):
            measurement.add(form(piece.x), piece.y)
        return measurement

    for form in (lambda x: pair(x, [x]), lambda x: {"a": x, "b": (x, None)}):
        assert joined(form).metrics() == {"worst": N}
    with pytest.raises(ConfigError, match="cannot be joined: they hold a Form"):
        joined(lambda x: type("Form", (), {})()).metrics()
    for form, why in (
        (lambda x: torch.zeros(2, len(x)), r"outputs have shape \(2, 60\) for any number"),
        (lambda x: (x, x.mean()), r"outputs/1 have shape \(\) for any number"),
        (lambda x: {"a": torch.zeros(len(x), len(x))}, "RuntimeError"),
    ):
        with pytest.raises(ConfigError, match=f"^loss and metrics need [^;]* cannot be joined: {why}"):
            joined(form).metrics()


def test_a_metric_that_some_client_can_compute_is_taken_and_one_that_none_can_is_refused() -> None:
    def of_two(outputs: Tensor, y: Tensor) -> Any:
        if len(y.unique()) < 3:
            raise ValueError("one class")
        return f1(outputs, y)

    made = task(metrics={"accuracy": lambda o, y: (o.argmax(1) == y).double().mean(), "auc": of_two})
    check_fit(made, 0)  # the first examples are of one class, the test data of three
    few = DATA.take(slice(0, 20))
    measured = evaluate(made, model(), few)
    assert (set(measured.others), 0 <= measured.score <= 1, measured.loss > 0) == (set(), True, True)
    with pytest.raises(ConfigError, match="'auc' can be computed on the data of no client: ValueError: one class"):
        check_fit(task(metrics={"auc": of_two}, data=few, clients=2), 0)


class Formed(nn.Module):
    """A linear model of three classes that reads its inputs and gives its outputs in another form."""

    def __init__(self, read: Any = lambda x: x, form: Any = lambda o: o) -> None:
        super().__init__()
        self.layer, self.read, self.form = nn.Linear(4, 3), read, form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.layer(self.read(x)))


def of_first(outputs: Any, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs[0], y)


def relabelled(outputs: Any, y: Tensor) -> Tensor:
    y[y == 2] = 1  # none of the examples that are tried is of class 2
    return functional.cross_entropy(outputs, y)


SHARE = fedappeal.Metric("r2", True, 0, 1)


@pytest.mark.parametrize(
    ("net", "loss", "metrics", "said"),
    [
        (Formed(lambda x: x.sub_(0.5)), None, None, "model is not allowed: it changes its inputs in place"),
        (Formed(), relabelled, f1, "loss is not allowed: it changes the labels in place"),
        (Formed(form=lambda o: (o, o.mean())), of_first, lambda o, y: 0.5, r"outputs/1 have shape \(\) for any"),
        (Formed(form=lambda o: (o, o.mean(0))), of_first, lambda o, y: 0.5, r"outputs/1 have shape \(3,\) for any"),
        (Formed(), None, {SHARE: lambda o, y: -3.0}, "'r2' .*: it is -3, its bounds are 0 and 1"),
        (Formed(), None, {"f1": f1, SHARE: lambda o, y: -3.0}, "'r2' .*: it is -3, its bounds are 0 and 1"),
    ],
)
def test_what_would_falsify_an_evaluation_is_refused_before_a_run(
    net: Any, loss: Any, metrics: Any, said: str
) -> None:
    data = Split(DATA.x.clone(), DATA.y.clone())
    with pytest.raises(ConfigError, match=said):
        in_pieces(task(loss, metrics, data, net=net), 50).check()
    assert torch.equal(data.x, DATA.x)
    assert torch.equal(data.y, DATA.y)


def test_outputs_without_rows_and_inputs_changed_in_training_alone_are_taken() -> None:
    task(of_first, lambda o, y: 0.5, net=Formed(form=lambda o: (o, o.mean()))).check()
    in_pieces(task(net=Formed(form=lambda o: o[:, [0, 1, 2]])), 50).check()

    class Noisy(Formed):
        def forward(self, x: Tensor) -> Any:
            return self.layer(x.add_(1) if self.training else x)

    task(net=Noisy()).check()


class Halved(Weighted):
    """Its metrics and loss change what they are given."""

    loss_is_mean = True

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
        return functional.cross_entropy(outputs.mul_(1), y, reduction=reduction) + 0 * outputs.zero_().sum()

    def metrics(self, outputs: Any, y: Any) -> dict[str, float]:
        y[y == 2] = 1
        return {"worst": float(worst(outputs, y))}


def test_a_metric_or_loss_that_changes_what_it_is_given_changes_nothing_else() -> None:
    def squashed(outputs: Tensor, y: Tensor) -> float:
        y[y == 2] = 1
        outputs.sigmoid_()
        return 0.5

    class Zeroed(Recall):
        def update(self, preds: Tensor, target: Tensor) -> None:
            super().update(preds.zero_(), target.zero_())

    labels = DATA.y.clone()
    for size in (7, N):
        found = evaluate(in_pieces(task(metrics={"q": squashed, "z": Zeroed(), "f1": f1}), size), model(), DATA)
        plain = evaluate(in_pieces(task(metrics={"f1": f1}), size), model(), DATA)
        assert (found.loss, found.others["f1"]) == (plain.loss, plain.score)
        evaluate(in_pieces(Halved(TaskSettings(task="weighted")), size), model(), DATA)
        assert torch.equal(DATA.y, labels)


def test_a_value_out_of_its_bounds_is_missing_and_one_that_rounding_put_there_is_the_bound() -> None:
    for value, scores in ((1.0000001, {"r2": 1.0}), (1.1, {})):
        measurement = Evaluator(task(metrics={SHARE: lambda o, y, v=value: v}), with_loss=False)
        measurement.add(DATA.x, DATA.y)
        assert measurement.metrics() == scores
    assert measurement.problems == {"r2": "it is 1.1, its bounds are 0 and 1"}
