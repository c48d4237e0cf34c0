"""A client's convolution beside others': the values and gradients of PyTorch's, for any stride and padding."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedappeal.simulation.forms.batched import Target
from fedappeal.simulation.forms.layers import batched_layer

BY_PATCHES, ONE_BY_ONE = 2, 8
"""Channels of the inputs: with a kernel of 3 by 2, 12 and 48 inputs an output."""


def compared(inputs: int, first: bool, **how: Any) -> None:
    """Compare three clients' convolutions with PyTorch's."""
    torch.manual_seed(0)
    modules = [nn.Conv2d(inputs, 5, (3, 2), **how) for _ in range(3)]
    parameters = {
        name: torch.stack([module.get_parameter(name).detach() for module in modules])
        for name, _ in modules[0].named_parameters()
    }
    into = {name: torch.zeros_like(p) for name, p in parameters.items()}
    x = torch.randn(3, 4, inputs, 8, 9, requires_grad=True)
    expected = torch.stack([module(own) for module, own in zip(modules, x, strict=True)])
    grad = torch.randn_like(expected)
    expected.backward(grad)
    layer = batched_layer("", modules[0])
    assert layer is not None
    with torch.no_grad(), pytest.MonkeyPatch.context() as patched:
        if inputs == BY_PATCHES:
            patched.setattr(functional, "conv2d", _not_to_be_called)
        found = layer.forward(x, parameters, True)
        below = layer.backward(grad, parameters, Target(into), first)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.stride(2) == 1, "channels are not last in memory"
    for k, module in enumerate(modules):
        for name, p in module.named_parameters():
            torch.testing.assert_close(into[name][k], p.grad, rtol=1e-4, atol=1e-4)
    if not first:
        torch.testing.assert_close(below, x.grad, rtol=1e-5, atol=1e-5)
        assert below.stride(2) == 1, "channels are not last in memory"


def _not_to_be_called(*arguments: Any) -> None:
    raise AssertionError("a small convolution is one product of patches")


@pytest.mark.parametrize("how", [{}, {"padding": 1}, {"stride": (2, 3), "padding": (1, 0)}, {"bias": False}])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("inputs", [BY_PATCHES, ONE_BY_ONE])
def test_values_and_gradients_are_pytorchs(how: dict[str, Any], first: bool, inputs: int) -> None:
    compared(inputs, first, **how)


def test_groups_and_dilation_are_pytorchs() -> None:
    compared(ONE_BY_ONE + 2, False, groups=5, dilation=2)
