"""What cannot be calculated side by side is found before a run, and named in one line."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from client.training.noise import Noise
from fedappeal.simulation.forms.batched import NotBatchable
from fedappeal.simulation.forms.dry_run import LONGEST, check_form, short_reason
from fedappeal.simulation.forms.layered import LayeredForm
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.tasks.examples import Split
from tests.problems import Classification, GivenLoss


class Around(nn.Module):
    """A layer of the test's inside a model."""

    def __init__(self, inside: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), Inner(inside), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.inner(self.first(x)))
        return y


class Inner(nn.Module):
    def __init__(self, inside: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._inside = inside
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self._inside(x)


class Counting(Inner):
    calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Doubled(torch.autograd.Function):
    """Written for autograd alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def written_over(x: Tensor) -> Tensor:
    total = torch.zeros(4)
    total.add_(x.sum(0))
    return x + total


def data(width: int = 4) -> Split:
    torch.manual_seed(0)
    return Split(torch.randn(6, width), torch.randint(0, 3, (6,)))


def reason(model: nn.Module, task: Classification | None = None, examples: Split | None = None) -> str:
    task = task or Classification()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NotBatchable) as refused:
        check_form(VmapForm(task, model), task, model, examples or data())
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (lambda x: x * x.sum().item(), "reads a value out of a tensor"),
        (lambda x: x if x.sum() > 0 else -x, "branches on the values of a tensor"),
        (Doubled.apply, "a custom autograd function without a vmap form"),
        (lambda x: x[x[:, 0] > 0], "its output's shape depends on the values of a tensor"),
        (written_over, "writes into a tensor that all clients share"),
    ],
)
def test_the_innermost_layer_and_its_reason_are_named(inside: Callable[[Tensor], Tensor], said: str) -> None:
    model = Around(inside)
    found = reason(model) if "shape" not in said else _lenient(model)
    assert found.startswith("layer 'inner' (Inner): ")
    assert said in found


def _lenient(model: nn.Module) -> str:
    """A layer that drops examples: the loss takes what is left."""
    return reason(model, GivenLoss(lambda outputs, y: outputs.square().mean()))


def test_what_has_no_batching_rule_is_named() -> None:
    chained = Around(lambda x: torch.chain_matmul(x, torch.eye(4)))  # type: ignore[no-untyped-call]
    assert reason(chained) == "layer 'inner' (Inner): PyTorch has no batched aten::chain_matmul"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_have_their_batched_form_from_pytorchs_decompositions(kind: type[nn.RNNBase]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.last = kind(2, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.memory(x.view(-1, 2, 2))[0][:, -1])
            return y

    model = Recurrent()
    check_form(VmapForm(Classification(), model), Classification(), model, data())


def test_batch_normalisation_and_any_buffer_that_changes_is_named() -> None:
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert reason(normed) == "layer '1' (BatchNorm1d) changes its 'running_mean' in training"
    counting = Around(lambda x: x)
    counting.inner = Counting(lambda x: x)
    assert reason(counting) == "layer 'inner' (Counting) changes its 'calls' in training"


def test_batch_normalisation_without_running_statistics_can_be_calculated_side_by_side() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    check_form(VmapForm(Classification(), model), Classification(), model, data())


def test_a_loss_that_reads_a_value_is_named() -> None:
    task = GivenLoss(lambda outputs, y: functional.cross_entropy(outputs, y) / outputs.sum().item())
    assert reason(nn.Linear(4, 3), task).startswith("the loss: reads a value out of a tensor")


def test_a_loss_that_is_no_mean_over_examples_goes_by_vmap_and_not_by_layers() -> None:
    """Weighted classes: the mean is over weights, and clients' minibatches are not alike."""
    task = GivenLoss(lambda outputs, y: functional.cross_entropy(outputs, y, weight=torch.tensor([1.0, 5.0, 25.0])))
    model = nn.Linear(4, 3)
    check_form(VmapForm(task, model), task, model, data())
    with pytest.raises(NotBatchable, match="the gradients are others than one by one"):
        check_form(LayeredForm(task, model), task, model, data())


def test_a_model_that_keeps_its_parameters_to_itself_is_found_out() -> None:
    """What a layer holds in a list is not replaced by a client's."""

    class Hoarding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
            self.kept = [self.first.weight]

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.first(x) @ self.kept[0])
            return y

    assert reason(Hoarding()) == "side by side the gradients are others than one by one"


def test_there_is_nothing_to_train_in_a_frozen_model() -> None:
    with pytest.raises(NotBatchable, match="there is nothing to train"):
        VmapForm(Classification(), nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("keyed", [True, False], ids=["by key", "as in runs of earlier versions"])
def test_dropout_is_compared_where_it_is_the_same_and_one_example_is_enough(keyed: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    few = Split(torch.randn(1, 4), torch.zeros(1, dtype=torch.int64))
    for form in (VmapForm(Classification(), model), LayeredForm(Classification(), model)):
        check_form(form, Classification(), model, few, Noise(0, "dry run", 0, keyed))


def test_a_model_with_draws_of_its_own_is_named() -> None:
    class Jittered(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = super().forward(x + torch.randn_like(x))
            return y

    assert reason(Jittered(4, 3)) == "Jittered draws numbers of its own, not by dropout"


def test_a_reason_is_one_line_of_bounded_length() -> None:
    assert short_reason("first\nsecond") == "first"
    assert short_reason("x" * 500) == "x" * (LONGEST - 3) + "..."
    assert short_reason("") == ""
