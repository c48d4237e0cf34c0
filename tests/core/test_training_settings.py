"""How much a client trains: which source counts, and how many steps that are."""

import pytest

from fedappeal.core.local_rule import LocalTrainingSettings
from fedappeal.settings.config import ConfigError


@pytest.mark.parametrize(
    ("settings", "examples", "steps"),
    [
        ({"local-steps": 7}, 100, 7),
        ({"local-steps": 7, "local-epochs": 3}, 100, 7),
        ({"local-epochs": 3}, 100, 12),
        ({"local-epochs": 3}, 96, 9),
        ({"local-epochs": 2}, 5, 2),
    ],
)
def test_steps_of_a_round(settings: dict[str, int], examples: int, steps: int) -> None:
    training = LocalTrainingSettings.parse({"learning-rate": 0.1, "batch-size": 32, **settings})
    assert training.steps(examples) == steps


def test_settings_come_from_the_first_source_that_has_them() -> None:
    training = LocalTrainingSettings.of(
        {"learning-rate": 0.5, "server-round": 3}, {"learning-rate": 0.1, "batch-size": 8, "x": 1}
    )
    assert training == LocalTrainingSettings(learning_rate=0.5, batch_size=8)
    with pytest.raises(ConfigError, match=r"^batch-size is missing$"):
        LocalTrainingSettings.of({"learning-rate": 0.5})
    with pytest.raises(ConfigError, match="learning-rate = -1 is not allowed"):
        LocalTrainingSettings.of({"learning-rate": -1, "batch-size": 8})


RUN = LocalTrainingSettings(learning_rate=0.1, batch_size=32, local_steps=30)


def test_a_message_changes_what_it_tells_alone() -> None:
    told = {"learning-rate": 0.05, "local-steps": 7, "round": 3}
    assert RUN.changed_by(told) == LocalTrainingSettings(learning_rate=0.05, batch_size=32, local_steps=7)
    assert RUN.changed_by({"round": 3}) is RUN


def test_what_a_message_tells_is_checked() -> None:
    with pytest.raises(ConfigError, match="local-steps = -1 is not allowed"):
        RUN.changed_by({"local-steps": -1})
