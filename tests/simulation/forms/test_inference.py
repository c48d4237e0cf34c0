"""The model for large passes: the same outputs as the model whose parameters it has."""

from types import MethodType

import torch
from torch import nn

from fedappeal.simulation.evaluation import for_inference


def assert_same(model: nn.Module, inputs: int) -> nn.Module:
    x = torch.randn(40, inputs)
    fast = for_inference(model.eval())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    return fast


def test_a_rectifier_is_done_by_the_layer_before_it_and_the_values_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 7), nn.ReLU(), nn.Dropout(), nn.Linear(7, 5))
    fast = assert_same(model, 30)
    assert nn.ReLU not in map(type, fast.modules())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-2.0)
        torch.testing.assert_close(fast(torch.ones(3, 30)), model(torch.ones(3, 30)))


def test_a_layer_that_stands_in_two_places_is_rectified_only_where_a_rectifier_follows() -> None:
    torch.manual_seed(0)
    twice, rectifier = nn.Linear(6, 6), nn.ReLU()
    assert_same(nn.Sequential(twice, rectifier, twice, nn.Tanh(), rectifier, twice), 6)


def test_a_hook_between_layer_and_rectifier_is_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model[0].register_forward_hook(lambda layer, given, y: -y)
    assert_same(model, 6)


class _LastAlone(nn.Module):
    """Calls one layer of a list of layers without the rectifier that stands after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers[0](x)
        return y


def test_a_module_of_ones_own_may_call_a_listed_layer_alone() -> None:
    torch.manual_seed(0)
    assert_same(_LastAlone(), 6)


def test_a_forward_pass_of_a_layers_own_is_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model[1].forward = MethodType(lambda self, x: 2 * x, model[1])
    assert_same(model, 6)
