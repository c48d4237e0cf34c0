"""Max pooling: PyTorch's values and gradients, also of equal values and cut edges, in either order in memory."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from fedappeal.simulation.forms.batched import Target
from fedappeal.simulation.forms.layers import max_pool2d


@pytest.mark.parametrize("kernel", [2, 3, (1, 2), (3, 2), [2]])
@pytest.mark.parametrize("size", [(6, 6), (7, 9)])
@pytest.mark.parametrize("last", [False, True])
def test_values_and_gradients_are_pytorchs(kernel: Any, size: tuple[int, int], last: bool) -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (2, 3, 4, *size), generator=draws).float()  # few values: many are equal
    if last:
        x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    own = x.flatten(0, 1).clone().requires_grad_()
    expected = functional.max_pool2d(own, kernel)
    layer = max_pool2d(kernel)
    assert layer is not None
    found = layer.forward(x, {}, True)
    assert torch.equal(found.flatten(0, 1), expected)
    assert (found.stride(2) == 1) is last, "the order in memory stays"
    grad = torch.randn(found.shape, generator=draws)
    (below,) = torch.autograd.grad(expected, own, grad.flatten(0, 1))
    assert torch.equal(layer.backward(grad, {}, Target({}), False).flatten(0, 1), below)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"kernel_size": 3, "stride": 2}, {"kernel_size": 2, "padding": 1}, {"kernel_size": 1}),
        *({"kernel_size": 2, "dilation": 2}, {"kernel_size": 2, "ceil_mode": True}),
    ],
)
def test_other_windows_are_left_to_pytorch(arguments: dict[str, Any]) -> None:
    assert max_pool2d(**arguments) is None


def test_inputs_smaller_than_a_window_are_an_error_as_in_pytorch() -> None:
    layer = max_pool2d(4)
    assert layer is not None
    with pytest.raises(ValueError, match=r"windows of \(4, 4\) do not fit into inputs of \(3, 6\)"):
        layer.forward(torch.zeros(1, 1, 3, 6), {}, True)
