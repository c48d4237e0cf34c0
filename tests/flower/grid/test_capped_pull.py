"""What fedappeal.flower.grid.http_inbox relies on: the sending half of Flower's HTTP client."""

import pytest

from tests.flower.runtime_api import World
from tests.hostile.forged import model

MIB = 1 << 20


@pytest.mark.parametrize("announces", [True, False])
def test_of_an_object_that_is_too_large_nothing_is_read(world: World, announces: bool) -> None:
    node = world.node()
    node.forge(model(bytes(19 * MIB)))
    world.api.announces = announces
    (got,) = world.pull(node).values()
    assert "too large" in str(got.error.reason)
    assert world.api.encodings["pull-object"] == "identity", "a squeezed answer would say nothing of its size"
    assert world.api.read < MIB // 4


def test_an_error_of_the_superlink_is_no_object_that_is_too_large(world: World) -> None:
    node = world.node()
    node.forge(model(bytes(16)))
    world.api.error = "busy " * MIB
    (got,) = world.pull(node).values()
    assert "HTTP 503" in str(got.error.reason)
