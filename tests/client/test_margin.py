"""What a client sends for ADA-GD under MaxFL's weights: margin and gradient, times a factor of its own."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

import client.app
import client.registry
from client.byzantine import attackers
from client.models import arrays_of, evaluate
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from fedappeal.protocol.packing import Layout
from fedappeal.tasks import load_task
from strategies.maxfl_adagd import LEAST_FACTOR

pytestmark = pytest.mark.usefixtures("fresh")

# The leaving loss is 1.5 * 0.4, far below the fresh model's, which is near ln 10.
CONFIG = RunConfig(
    strategy="maxfl-adagd", clients=4, requirement="fixed", fixed_requirement=1.5, precision=0.4, slack=1.5
)
TASK = load_task(CONFIG.task_settings())
INITIAL = arrays_of(TASK.initial_model(0))
LAYOUT = Layout.of(INITIAL)
LOSS, _ = evaluate(TASK, TASK.initial_model(0), TASK.load(1).train)
ASKED: dict[str, Scalar] = {keys.REPORT: keys.MARGIN, keys.LEAVING_LOSS: 1.5 * 0.4}


def ask(told: dict[str, Scalar], node: dict[str, Scalar] | None = None, **changed: object) -> RecordDict:
    """Ask client 1 for a gradient of the initial model."""
    config = CONFIG.model_copy(update=changed).as_config()
    context = Context(7, 3, {"partition-id": 1, "device": "cpu", **(node or {})}, RecordDict(), config)
    sent = ConfigRecord({keys.SERVER_ROUND: 1, keys.LOCAL_RULE: "gradient", **told})
    return client.app.app(
        Message(RecordDict({keys.ARRAYS: LAYOUT.pack(INITIAL), keys.CONFIG: sent}), 3, "train"), context
    ).content


def gradient_of(content: RecordDict) -> np.ndarray:
    return content.array_records[keys.ARRAYS]["flat"].numpy()


def factor_for(requirement: float) -> float:
    """4 q_k by equation 4, as it is printed."""
    s = 1 / (1 + math.exp(-(LOSS - requirement)))
    return 4 * s * (1 - s)


@pytest.mark.parametrize("requirement", [0.25, 1.5, 5.0])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_reply_is_the_factor_times_margin_and_gradient(requirement: float, steps: int) -> None:
    several: dict[str, Scalar] = {"gradient-steps": steps, "learning-rate": 0.5}
    plain = ask({keys.REPORT: keys.LOSS, **several}, strategy="adagd")
    found = ask(ASKED | several, fixed_requirement=requirement)
    factor = factor_for(requirement)
    assert 0.1 < factor < 0.95
    assert dict(found.metric_records[keys.METRICS]) == {
        keys.NUM_EXAMPLES: len(TASK.load(1).train),
        keys.DECISION: 1,
        keys.MARGIN: pytest.approx(factor * (LOSS - 0.6), rel=1e-6),
    }, "nothing else that depends on the loss"
    assert gradient_of(found).dtype == np.float32
    np.testing.assert_allclose(gradient_of(found), factor * gradient_of(plain), rtol=1e-5, atol=1e-9)


def test_at_its_requirement_a_client_sends_what_it_sends_for_adagd() -> None:
    plain = ask({keys.REPORT: keys.LOSS}, strategy="adagd")
    found = ask(ASKED, fixed_requirement=LOSS)
    assert np.array_equal(gradient_of(found), gradient_of(plain))
    assert found.metric_records[keys.METRICS][keys.MARGIN] == pytest.approx(LOSS - 0.6)


def test_the_factor_of_an_absurd_gap_is_the_least_and_the_gradient_is_not_zero() -> None:
    plain = ask({keys.REPORT: keys.LOSS}, strategy="adagd")
    found = ask(ASKED, fixed_requirement=5000.0)
    assert found.metric_records[keys.METRICS][keys.MARGIN] == pytest.approx(LEAST_FACTOR * (LOSS - 0.6))
    assert np.array_equal(gradient_of(found), LEAST_FACTOR * gradient_of(plain)), "a power of two rounds nothing"


def test_a_client_that_reports_no_loss_reports_its_margin() -> None:
    silent = ask(ASKED, {"report-loss": False})
    assert dict(silent.metric_records[keys.METRICS]) == dict(ask(ASKED).metric_records[keys.METRICS])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({keys.LEAVING_LOSS: 0.8}, r"leaving-loss = 0\.8 is not allowed in this run: 0\.6"),
        ({keys.LEAVING_LOSS: None}, r"leaving-loss = None is not allowed in this run: 0\.6"),
        ({keys.REPORT: keys.LOSS}, "report = loss is not allowed in this run: margin"),
        (
            {keys.REPORT: "margin,satisfied"},
            "report = margin,satisfied is not allowed in this run: margin",
        ),
        ({keys.REPORT: None, keys.LEAVING_LOSS: None}, "report = None is not allowed in this run: margin"),
        ({keys.TUNING_STEPS: 0}, "tuning-steps = 0 is not allowed in this run: None"),
    ],
)
def test_what_would_tell_the_factor_is_refused(told: dict[str, Scalar | None], message: str) -> None:
    asked = {key: value for key, value in {**ASKED, **told}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        ask(asked)


def test_a_margin_is_for_its_strategy_alone() -> None:
    with pytest.raises(ConfigError, match=r"leaving-loss = 1\.2 is not allowed in this run: 0\.6"):
        ask({**ASKED, keys.LEAVING_LOSS: 1.2}, strategy="maxfl")


def test_a_client_leaves_at_its_precision() -> None:
    assert ask(ASKED)[keys.METRICS][keys.DECISION] == 1
    enough = LOSS + 0.1
    left = ask({keys.REPORT: keys.MARGIN, keys.LEAVING_LOSS: 1.5 * enough}, precision=enough)
    assert list(left) == [keys.METRICS]
    assert keys.MARGIN not in left[keys.METRICS]
    assert left[keys.METRICS][keys.DECISION] == -1


def test_an_attackers_margin_is_that_of_its_inflated_loss() -> None:
    assert 1 in attackers(CONFIG.seed, 4, 1.0)
    told = ask(ASKED, byzantine_share=1.0, byzantine_inflation=4.0).metric_records[keys.METRICS]
    assert told[keys.MARGIN] == pytest.approx(factor_for(1.5) * (4 * LOSS - 0.6), rel=1e-6)
