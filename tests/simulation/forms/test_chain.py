"""Models whose forward pass calls layers one after another, as the chain that the batched layers know."""

import threading
from collections.abc import Callable
from itertools import pairwise
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedappeal.simulation.forms.batched import NotBatchable
from fedappeal.simulation.forms.dry_run import check_form
from fedappeal.simulation.forms.layered import BatchedModel, LayeredForm
from fedappeal.simulation.forms.layers import MaxPool2d, ReLU
from fedappeal.tasks.examples import Split
from tests.problems import Classification


class Model(nn.Module):
    """Layers, and a forward pass over them that the test writes."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.hidden, self.last = nn.Conv2d(1, 2, 3), nn.Linear(32, 5), nn.Linear(5, 3)
        self.drop = nn.Dropout(0.5)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


class PoolingModel(nn.Module):
    """Convolutions with what a user puts around them; images of 12 by 12."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)
        self.norm, self.last = nn.LayerNorm([4, 6, 6]), nn.Linear(27, 3)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


POOLING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "after the rectifier": lambda m, x: F.max_pool2d(F.relu(m.second(m.norm(F.max_pool2d(F.relu(m.conv(x)), 2)))), 2),
    "before the rectifier": lambda m, x: F.relu(F.max_pool2d(m.second(m.norm(F.max_pool2d(m.conv(x), 2))), 2)),
    "of the images": lambda m, x: F.max_pool2d(m.second(m.norm(m.conv(F.max_pool2d(x, 2)))).tanh(), 2),
    "by autograd": lambda m, x: F.avg_pool2d(m.second(m.norm(F.max_pool2d(m.conv(x), 3, 2, 1))).relu(), 2),
}


CHAINS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "functions": lambda m, x: m.last(F.relu(m.hidden(torch.flatten(F.relu(m.conv(x)), 1)))),
    "methods": lambda m, x: m.last(m.hidden(m.conv(x).relu().flatten(1)).tanh()),
    "view by size": lambda m, x: m.last(m.hidden(m.conv(x).view(x.size(0), -1)).relu()),
    "reshape by shape": lambda m, x: m.last(m.hidden(m.conv(x).reshape(x.shape[0], 32)).sigmoid()),
    "view by numbers": lambda m, x: m.last(F.gelu(m.hidden(m.conv(x).view(-1, 32)), approximate="tanh")),
    "shape is read later": lambda m, x: m.last(F.elu(m.hidden((h := m.conv(x)).view(h.size()[0], -1)), 0.5)),
    "pooling": lambda m, x: m.last(m.hidden(F.max_pool2d(F.relu(m.conv(x)), 1).flatten(1))),
    "dropout where it does nothing": lambda m, x: m.last(F.dropout(m.hidden(m.conv(x).flatten(1)), 0.0, m.training)),
}


def data() -> Split:
    torch.manual_seed(1)
    return Split(torch.randn(5, 1, 6, 6), torch.randint(0, 3, (5,)))


def data_of_six() -> Split:
    torch.manual_seed(1)
    return Split(torch.randn(5, 6), torch.randint(0, 3, (5,)))


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_layers_is_found_and_gives_the_gradients_of_the_model(name: str) -> None:
    torch.manual_seed(0)
    model = Model(CHAINS[name])
    form = LayeredForm(Classification(), model)
    check_form(form, Classification(), model, data())
    assert model.training, "the model stays as it is"


@pytest.mark.parametrize("name", POOLING)
def test_pooling_in_a_chain_gives_the_gradients_of_the_model(name: str) -> None:
    torch.manual_seed(0)
    model = PoolingModel(lambda m, x: m.last(POOLING[name](m, x).flatten(1)))
    form = LayeredForm(Classification(), model)
    kinds = [type(layer) for layer in form.model.layers[True]]
    assert kinds.count(MaxPool2d) == (0 if name == "by autograd" else 2)
    assert (ReLU, MaxPool2d) not in pairwise(kinds), "there is less to rectify after pooling"
    check_form(form, Classification(), model, Split(torch.randn(5, 1, 12, 12), torch.randint(0, 3, (5,))))


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda m, x: m.last(m.hidden(m.conv(x).flatten(1)) + 1.0), "'add' in the forward pass of Model"),
        (lambda m, x: m.last(m.hidden(m.conv(x).flatten(1))) + x.mean(), "is no chain of layers"),
        (lambda m, x: m.last(F.relu(h := m.hidden(m.conv(x).flatten(1)))) + m.last(h), "is no chain of layers"),
        (lambda m, x: m.hidden(m.conv(x).flatten(1)), "parameter 'last.weight' is not used"),
        (lambda m, x: m.last(m.hidden(m.conv(x).flatten(0).view(5, 32))), "'flatten' in the forward pass"),
        (lambda m, x: m.last(m.hidden(m.conv(x).view(32, -1).relu())), "'view' in the forward pass"),
        (lambda m, x: m.last(m.hidden(m.conv(x).flatten(1))) if x.sum() > 0 else x, "cannot be traced"),
        (lambda m, x: m.last(m.last(m.hidden(m.conv(x).flatten(1)))), "layer 'last' is called twice"),
        (lambda m, x: m.last(F.dropout(m.hidden(m.conv(x).flatten(1)), 0.5)), "stays on in evaluation mode"),
    ],
)
def test_another_forward_pass_is_named(forward: Callable[[Any, Tensor], Tensor], reason: str) -> None:
    with pytest.raises(NotBatchable, match=reason):
        BatchedModel(Model(forward))


def test_dropout_by_function_is_in_training_alone() -> None:
    model = BatchedModel(Model(lambda m, x: m.last(F.dropout(m.hidden(m.conv(x).flatten(1)), 0.5, m.training))))
    parameters = {name: torch.ones(1, *p.shape) for name, p in Model(lambda m, x: x).named_parameters()}
    x = torch.ones(1, 50, 1, 6, 6)
    torch.manual_seed(0)
    assert model.forward(x, parameters, training=True)[..., 0].unique().numel() > 2  # as many as units are kept
    assert model.forward(x, parameters, training=False)[..., 0].unique().numel() == 1


def test_weight_norm_computes_its_weight_in_a_hook_and_is_named() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(lambda module, given: None)
    with pytest.raises(NotBatchable, match=r"layer '1' \(Linear\) has no batched form"):
        BatchedModel(nn.Sequential(nn.Flatten(), layer))


SHARED = nn.Tanh()
TWICE: dict[str, nn.Module] = {
    "rectifier": nn.Sequential(nn.Linear(6, 8), RELU := nn.ReLU(), nn.Linear(8, 8), RELU, nn.Linear(8, 3)),
    "layers of one": nn.Sequential(nn.Linear(6, 8), *[SHARED] * 3, nn.Linear(8, 3)),
    "dropout": nn.Sequential(DROP := nn.Dropout(0.4), nn.Linear(6, 8), DROP, nn.Linear(8, 3)),
    "sequence": nn.Sequential(INNER := nn.Sequential(nn.Sigmoid()), nn.Linear(6, 8), INNER, nn.Linear(8, 3)),
    "in place": nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(inplace=True), nn.Linear(8, 3), nn.ELU(inplace=True)),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_module_in_several_places_or_that_writes_in_place_is_calculated_in_each(name: str) -> None:
    torch.manual_seed(2)
    form = LayeredForm(Classification(), TWICE[name])
    check_form(form, Classification(), TWICE[name], data_of_six())


def _doubled(module: nn.Module, *arguments: Any) -> None:
    raise AssertionError


ALTERED: dict[str, Callable[[nn.Sequential], object]] = {
    "forward hook of all": lambda model: model.register_forward_hook(_doubled),
    "pre-hook of all": lambda model: model.register_forward_pre_hook(_doubled),
    "pre-hook of a layer": lambda model: model[1].register_forward_pre_hook(_doubled),
    "backward hook": lambda model: model[1].register_full_backward_hook(_doubled),
    "backward pre-hook": lambda model: model[0].register_full_backward_pre_hook(_doubled),
    "own forward": lambda model: setattr(model[1], "forward", MethodType(lambda self, x: 2 * x, model[1])),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_is_attached_to_a_module_is_not_passed_over(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    ALTERED[name](model)
    with pytest.raises((NotBatchable, AssertionError)):
        check_form(LayeredForm(Classification(), model), Classification(), model, data_of_six())
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    check_form(LayeredForm(Classification(), plain), Classification(), plain, data_of_six())


def test_a_task_with_a_forward_of_its_own_is_no_chain() -> None:
    class Scaled(Classification):
        def forward(self, model: nn.Module, x: Any) -> Any:
            return model(x) * 2

    with pytest.raises(NotBatchable, match="calls its model in a way of its own"):
        LayeredForm(Scaled(), nn.Linear(2, 2))


class Waiting(nn.Module):
    """A layer whose forward pass waits for another thread."""

    def __init__(self, began: threading.Event, over: threading.Event) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.events = (began, over)

    def __deepcopy__(self, memo: object) -> "Waiting":
        return self

    def forward(self, x: Tensor) -> Tensor:
        began, over = self.events
        began.set()
        assert over.wait(60)
        return self.last(x)


def test_a_model_of_another_thread_works_while_one_is_traced() -> None:
    began, over = threading.Event(), threading.Event()
    other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.ones(4, 3)
    expected, found = other(x), []

    def elsewhere() -> None:
        assert began.wait(60)
        try:
            found.append(other(x))
        finally:
            over.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    model = BatchedModel(Waiting(began, over))
    thread.join()
    assert len(model.layers[True]) > 0
    assert torch.equal(found[0], expected)
