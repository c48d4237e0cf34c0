"""How much a client trains: the run's settings, what a message changes, and how many steps that are."""

import pytest

from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.training import LocalTrainingSettings


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
    training = LocalTrainingSettings.parse({"learning-rate": 0.1, "batch-size": 32, "local-steps": 0, **settings})
    assert training.steps(examples) == steps


def test_a_runs_training_is_a_part_of_its_settings() -> None:
    config = RunConfig.parse(
        {"learning-rate": 0.5, "batch-size": 8, "local-steps": 0, "local-epochs": 2, "clients": 3}
    )
    assert config.training == LocalTrainingSettings(learning_rate=0.5, batch_size=8, local_steps=0, local_epochs=2)
    assert config.training.steps(20) == 6


RUN = LocalTrainingSettings(learning_rate=0.1, batch_size=32, local_steps=30)


def test_a_message_changes_what_it_tells_alone() -> None:
    told = {"learning-rate": 0.05, "local-steps": 7, "round": 3}
    assert RUN.changed_by(told) == LocalTrainingSettings(learning_rate=0.05, batch_size=32, local_steps=7)
    assert RUN.changed_by({"round": 3}) is RUN


def test_what_a_message_tells_is_checked() -> None:
    with pytest.raises(ConfigError, match="local-steps = -1 is not allowed"):
        RUN.changed_by({"local-steps": -1})
