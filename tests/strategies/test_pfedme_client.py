"""pFedMe's local rule against quadratics by hand and the Moreau envelope itself, and the adapted evaluation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.settings.config import ConfigError
from fedappeal.settings.training import LocalTrainingSettings
from strategies import PFedMe
from tests.client.training.descents import descended
from tests.node import changed
from tests.strategies.adapted import RUN, check_by_written_out_steps, check_reported_besides

TRAINING = LocalTrainingSettings(learning_rate=0.5, batch_size=1)


def moreau(strength: float = 1.0, steps: int = 2, rate: float = 0.25) -> PFedMe.LocalRule:
    settings = PFedMe.Settings(moreau_lambda=strength, moreau_steps=steps, personal_learning_rate=rate)
    return PFedMe.LocalRule(settings)


def trained(batches: list[int]) -> float:
    return descended(moreau(), 1.0, [[b] for b in batches], TRAINING)


def test_moreau_by_hand() -> None:
    # a = 0. theta: 1 -> 0.75 -> 0.75 - 0.25 (0.75 + (0.75 - 1)) = 0.625; w = 1 - 0.5 (1 - 0.625) = 0.8125.
    assert trained([0]) == pytest.approx(0.8125, rel=1e-15)
    # theta goes on from 0.625: 0.625 - 0.25 (0.625 - 0.1875) = 0.515625, then - 0.25 (0.515625 - 0.296875) =
    # 0.4609375; w = 0.8125 - 0.5 (0.8125 - 0.4609375)
    assert trained([0, 0]) == pytest.approx(0.63671875, rel=1e-15)
    assert trained([]) == 1.0


@given(
    h=st.floats(0.01, 10),
    a=st.floats(-5, 5),
    w=st.floats(-5, 5),
    strength=st.floats(0.1, 50),
    eta=st.floats(0.001, 1),
    steps=st.integers(1, 6),
)
def test_the_step_is_the_gradient_of_the_moreau_envelope(
    h: float, a: float, w: float, strength: float, eta: float, steps: int
) -> None:
    # theta* = (h a + lambda w) / (h + lambda): one inner step of 1 / (h + lambda) is there, and all others stay there
    # only because the proximal term pulls back.
    training = LocalTrainingSettings(learning_rate=eta, batch_size=1)
    rule = moreau(strength, steps, 1 / (h + strength))
    personal = (h * a + strength * w) / (h + strength)
    got = descended(rule, w, [[0]], training, h, (a,))
    assert got == pytest.approx(w - eta * strength * (w - personal), rel=1e-9, abs=1e-9)
    # the envelope itself is h lambda / (2 (h + lambda)) (w - a)^2
    assert got == pytest.approx(w - eta * h * strength / (h + strength) * (w - a), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("key", "value"), [("momentum", 0.9), ("weight-decay", 0.01)])
def test_what_the_update_does_not_have_is_refused(key: str, value: float) -> None:
    training = LocalTrainingSettings.parse({"learning-rate": 0.5, "batch-size": 1, key: value})
    with pytest.raises(ConfigError, match=f"^{key} = {value} is not allowed with local-rule = 'moreau': 0$"):
        moreau().check(training)


# -- in a client ---------------------------------------------------------------------------------------

CONFIG = changed(
    RUN, strategy="pfedme", pfedme__moreau_steps=3, pfedme__moreau_lambda=2.0, pfedme__personal_learning_rate=0.2
)


def test_an_adapted_model_is_the_global_one_after_written_out_steps() -> None:
    check_by_written_out_steps(CONFIG, steps=3, rate=0.2, pull=2.0)


def test_an_evaluation_reports_the_adapted_model_besides() -> None:
    check_reported_besides(CONFIG)
