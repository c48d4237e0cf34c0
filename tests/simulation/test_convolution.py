"""A convolution by patches: the values and gradients of PyTorch's, for any stride and padding."""

from typing import Any

import pytest
import torch
from torch import nn

from fedappeal.simulation.layers import batched_layer


@pytest.mark.parametrize("how", [{}, {"padding": 1}, {"stride": (2, 3), "padding": (1, 0)}, {"bias": False}])
@pytest.mark.parametrize("first", [True, False])
def test_values_and_gradients_are_pytorchs(how: dict[str, Any], first: bool) -> None:
    torch.manual_seed(0)
    modules = [nn.Conv2d(2, 5, (3, 2), **how) for _ in range(3)]
    parameters = {
        name: torch.stack([module.get_parameter(name).detach() for module in modules])
        for name, _ in modules[0].named_parameters()
    }
    into = {name: torch.zeros_like(p) for name, p in parameters.items()}
    x = torch.randn(3, 4, 2, 8, 9, requires_grad=True)
    expected = torch.stack([module(own) for module, own in zip(modules, x, strict=True)])
    layer = batched_layer("", modules[0])
    assert layer is not None
    assert layer._by_patches  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(layer.forward(x, parameters, True), expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    with torch.no_grad():
        below = layer.backward(grad, parameters, into, 1.0, first)
    for k, module in enumerate(modules):
        for name, p in module.named_parameters():
            torch.testing.assert_close(into[name][k], p.grad, rtol=1e-4, atol=1e-4)
    if not first:
        torch.testing.assert_close(below, x.grad, rtol=1e-5, atol=1e-5)
