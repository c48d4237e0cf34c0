"""What an evaluation of a personalised strategy reports besides: tests that both strategies share."""

import pytest
import torch

from client.learner import Job, Sent
from client.participant import Participant
from client.training.models import arrays_of
from fedappeal.core.algorithm import personal_of
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.settings.config import RunConfig, Scalar
from tests.node import Node, changed, run_config

RUN = run_config(clients=4, solo__steps=2, batch_size=8, model="logistic", momentum=0.5)
"""Of the run's momentum an adaptation knows nothing."""


def participant_of(config: RunConfig) -> Participant:
    one = Node(config)
    return one.participants.of(one.context)


def adaptation_of(one: Participant) -> Job | None:
    """How a client of the run adapts the global model."""
    asked = personal_of(one.strategy).adaptation()
    return None if asked is None else one.adaptation(*asked)


def check_by_written_out_steps(config: RunConfig, steps: int, rate: float, pull: float) -> None:
    """The adapted model is the global one after steps of ``rate``, pulled back with strength ``pull``."""
    one = participant_of(config)
    model = one.learner.task.initial_model(0)
    arrays, x, y = arrays_of(model), one.learner.data.train.x, one.learner.data.train.y
    asked = adaptation_of(one)
    assert asked is not None
    plain = one.judge(arrays, Sent("m"), "test")
    found = one.judge(arrays, Sent("m"), "test", asked)

    start = [p.detach().clone() for p in model.parameters()]
    for batch in Minibatches(config.seed, one.client_id, 0, len(y), steps, 8, "adaptation").rows():
        gradients = torch.autograd.grad(one.learner.task.loss(model(x[batch]), y[batch]), list(model.parameters()))
        for p, g, s in zip(model.parameters(), gradients, start, strict=True):
            p.data -= rate * (g + pull * (p.data - s))
    expected = one.learner.task.loss(model(one.learner.data.test.x), one.learner.data.test.y).item()
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.loss < plain.loss
    assert one.judge(arrays, Sent("m"), "test") == plain


def evaluated(config: RunConfig, **node: Scalar) -> dict[str, object]:
    return Node(config, **node).metrics("evaluate", split="test")


def check_reported_besides(config: RunConfig) -> None:
    """An evaluation says of the adapted model what it says of the global one, and nothing else changes."""
    plain, told = evaluated(changed(config, strategy="fedavg")), evaluated(config)
    assert {k: told[k] for k in plain} == plain
    assert set(told) - set(plain) == {"adapted-accuracy", keys.ADAPTED_LOSS}
    assert told[keys.ADAPTED_LOSS] != plain[keys.LOSS]
    assert evaluated(config) == told
    assert set(evaluated(config, **{"report-loss": False})) == set(told) - {keys.LOSS, keys.ADAPTED_LOSS}
