"""What a client sends for ADA-GD under MaxFL's weights: margin and gradient, times a factor of its own."""

import math

import numpy as np
import pytest
from flwr.app import RecordDict

from client.training.models import arrays_of, evaluate
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.simulation.attackers import attackers
from fedappeal.tasks import load_task
from strategies.maxfl_adagd import LEAST_FACTOR, MARGIN
from tests.attacking import attacking
from tests.node import changed, metrics_of, run_config

# 1.5 * 0.4 is far below the loss of a model that has learned nothing, which is near ln 10.
CONFIG = run_config(
    strategy="maxfl-adagd",
    clients=4,
    requirement="fixed",
    fixed__loss=1.5,
    maxfl_adagd__precision=0.4,
    maxfl_adagd__slack=1.5,
    maxfl_adagd__form="one-gradient",
)
TASK = load_task(CONFIG.task_settings())
INITIAL = arrays_of(TASK.initial_model(0))
LAYOUT = Layout.of(INITIAL)
LOSS = evaluate(TASK, TASK.initial_model(0), TASK.load(1).train).loss


def ask(
    told: dict[str, Scalar | None] | None = None, node: dict[str, Scalar] | None = None, **settings: Scalar
) -> RecordDict:
    """Ask client 1 for a gradient of the initial model."""
    return attacking(changed(CONFIG, **settings), **(node or {}))("train", told=told)


def gradient_of(content: RecordDict) -> np.ndarray:
    return content.array_records[keys.ARRAYS]["flat"].numpy()


def factor_for(requirement: float) -> float:
    """4 q_k by equation 4, as it is printed."""
    s = 1 / (1 + math.exp(-(LOSS - requirement)))
    return 4 * s * (1 - s)


@pytest.mark.parametrize("requirement", [0.25, 1.5, 5.0])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_reply_is_the_factor_times_margin_and_gradient(requirement: float, steps: int) -> None:
    plain = ask(strategy="adagd", adagd__form="one-gradient", adagd__gradient_steps=steps, learning_rate=0.5)
    found = ask(maxfl_adagd__gradient_steps=steps, learning_rate=0.5, fixed__loss=requirement)
    factor = factor_for(requirement)
    assert 0.1 < factor < 0.95
    assert metrics_of(found) == {
        keys.NUM_EXAMPLES: len(TASK.load(1).train),
        keys.DECISION: 1,
        MARGIN: pytest.approx(factor * (LOSS - 0.6), rel=1e-6),
    }, "nothing else that depends on the loss"
    assert gradient_of(found).dtype == np.float32
    np.testing.assert_allclose(gradient_of(found), factor * gradient_of(plain), rtol=1e-5, atol=1e-9)


def test_at_its_requirement_a_client_sends_what_it_sends_for_adagd() -> None:
    plain = ask(strategy="adagd", adagd__form="one-gradient")
    found = ask(fixed__loss=LOSS)
    assert np.array_equal(gradient_of(found), gradient_of(plain))
    assert metrics_of(found)[MARGIN] == pytest.approx(LOSS - 0.6)


def test_the_factor_of_an_absurd_gap_is_the_least_and_the_gradient_is_not_zero() -> None:
    plain = ask(strategy="adagd", adagd__form="one-gradient")
    found = ask(fixed__loss=5000.0)
    assert metrics_of(found)[MARGIN] == pytest.approx(LEAST_FACTOR * (LOSS - 0.6))
    assert np.array_equal(gradient_of(found), LEAST_FACTOR * gradient_of(plain)), "a power of two rounds nothing"


def test_a_client_that_reports_no_loss_reports_its_margin() -> None:
    silent = ask(node={"report-loss": False})
    assert metrics_of(silent) == metrics_of(ask())


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"maxfl-adagd.precision": 0.8}, r"maxfl-adagd\.precision = 0\.8 is not allowed in this run: 0\.4"),
        ({"maxfl-adagd.slack": 2.0}, r"maxfl-adagd\.slack = 2\.0 is not allowed in this run: 1\.5"),
        # the same product, which alone counts for the margin
        ({"maxfl-adagd.slack": 1.0, "maxfl-adagd.precision": 0.6}, "maxfl-adagd.precision = 0.6 is not allowed"),
        ({"maxfl-adagd.gradient-steps": 3}, r"maxfl-adagd\.gradient-steps = 3 is not allowed in this run: 1"),
        ({keys.STRATEGY: "adagd"}, "strategy = 'adagd' is not allowed in this run: 'maxfl-adagd'"),
        ({keys.STRATEGY: "maxfl"}, "strategy = 'maxfl' is not allowed in this run: 'maxfl-adagd'"),
        ({keys.STRATEGY: "mwfed"}, "strategy = 'mwfed' is not allowed in this run: 'maxfl-adagd'"),
        ({keys.STRATEGY: None}, "strategy = '' is not allowed in this run: 'maxfl-adagd'"),
        (
            {keys.LOCAL_RULE: "gradient"},
            "local-rule = 'gradient' is not allowed with strategy = 'maxfl-adagd': 'weighted-gradient'",
        ),
        (
            {keys.LOCAL_RULE: "sgd"},
            "local-rule = 'sgd' is not allowed with strategy = 'maxfl-adagd': 'weighted-gradient'",
        ),
    ],
)
def test_what_would_tell_the_factor_is_refused(told: dict[str, Scalar | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        ask(told)
    assert "\n" not in str(error.value)


def test_a_setting_that_the_message_leaves_out_is_the_runs() -> None:
    assert ask({"maxfl-adagd.precision": None, "maxfl-adagd.slack": None}) == ask()


def test_a_margin_is_for_its_strategy_alone() -> None:
    with pytest.raises(ConfigError, match="strategy = 'maxfl-adagd' is not allowed in this run: 'maxfl'"):
        ask({keys.STRATEGY: "maxfl-adagd"}, strategy="maxfl")


def test_a_client_leaves_at_its_precision() -> None:
    assert metrics_of(ask())[keys.DECISION] == 1
    left = ask(maxfl_adagd__precision=LOSS + 0.1)
    assert list(left) == [keys.METRICS]
    assert MARGIN not in metrics_of(left)
    assert metrics_of(left)[keys.DECISION] == -1


def test_an_attackers_margin_is_that_of_its_inflated_loss() -> None:
    assert 1 in attackers(CONFIG.seed, 4, 1.0)
    told = metrics_of(ask(byzantine_share=1.0, byzantine_inflation=4.0))
    assert told[MARGIN] == pytest.approx(factor_for(1.5) * (4 * LOSS - 0.6), rel=1e-6)
