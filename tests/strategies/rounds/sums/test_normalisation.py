"""Models with running statistics are refused by name."""

import pytest

from fedappeal.settings.config import ConfigError
from strategies.rounds.algorithm import refuse_batch_norm


def test_each_layer_is_named_once() -> None:
    with pytest.raises(ConfigError) as error:
        refuse_batch_norm("mine", ["bn1.running_mean", "bn1.running_var", "fc.weight", "running_var"])
    assert str(error.value) == (
        "model with BatchNorm is not allowed with strategy = 'mine': bn1, (unnamed) "
        "(parameters alone, no running statistics)"
    )


def test_parameters_alone_are_fine() -> None:
    refuse_batch_norm("mine", ["flat", "conv.weight", "norm.running"])
