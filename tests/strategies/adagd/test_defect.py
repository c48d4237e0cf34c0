"""ADA-GD's rational agents: they leave at their own limit, at the strategy's precision, else at 0.3."""

import math

import pytest

from fedappeal.core.plugins import parse_section
from fedappeal.core.policy import Situation
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError, Scalar
from strategies.adagd.strategy import Defect
from tests.node import Node, run_config


def decision(loss: float, own: dict[str, Scalar], told: dict[str, Scalar]) -> Decision:
    defect = Defect(parse_section(Defect, own))
    return defect.decide(Situation(evaluation=Evaluation(loss, 0.5), told=told))


@pytest.mark.parametrize(
    ("own", "told", "limit"),
    [
        ({}, {}, 0.3),
        ({}, {"precision": 0.5}, 0.5),
        ({"leave-below": 0.25}, {"precision": 0.5}, 0.25),
        ({"leave-below": 0.25}, {}, 0.25),
    ],
)
def test_a_client_leaves_at_its_limit(own: dict[str, Scalar], told: dict[str, Scalar], limit: float) -> None:
    assert decision(limit, own, told) is Decision.LEFT
    assert decision(math.nextafter(limit, 0), own, told) is Decision.LEFT
    assert decision(math.nextafter(limit, 1), own, told) is Decision.JOINED
    assert decision(math.nan, own, told) is Decision.JOINED


def test_a_limit_that_is_not_allowed_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^defect\.leave-below = 0 is not allowed: input should be greater than 0$"
    ):
        parse_section(Defect, {"leave-below": 0})


def decided(
    loss_limit: dict[str, Scalar], strategy: str = "adagd", told: dict[str, Scalar | None] | None = None
) -> object:
    """What a client decides of w_0, whose loss is near ln 10 = 2.3."""
    config = run_config(strategy=strategy, clients=4, participation="defect", local_steps=1, solo__steps=1)
    settings = {key: value for key, value in loss_limit.items() if "." in key}
    owners = {key: value for key, value in loss_limit.items() if "." not in key}
    node = Node(type(config).parse({**config.as_config(), **settings}), **owners)
    return node.metrics("train", None, told, mandatory=1)[keys.DECISION]


def test_in_a_run_it_is_the_strategys_precision_unless_the_run_or_the_owner_names_another() -> None:
    assert decided({}) == 1
    assert decided({"adagd.precision": 5.0}) == -1
    assert decided({"adagd.precision": 5.0, "defect.leave-below": 0.1}) == 1
    assert decided({"adagd.precision": 0.1, "defect.leave-below": 5.0}) == -1
    # the owner's, with the owner's policy or the run's
    assert decided({"defect.leave-below": 5.0, "set": "defect.leave-below=0.1"}) == 1
    assert decided({"adagd.precision": 0.1, "set": "defect.leave-below=5"}) == -1
    assert decided({"participation": "defect", "set": "defect.leave-below=5"}, "maxfl") == -1
    assert decided({"adagd.precision": 5.0, "participation": "defect"}) == -1
    # a strategy without a precision
    assert decided({}, "fedavg") == 1
    assert decided({"defect.leave-below": 5.0}, "fedavg") == -1


def test_a_message_that_leaves_the_precision_out_leaves_the_runs() -> None:
    assert decided({"adagd.precision": 5.0}, told={"adagd.precision": None}) == -1
