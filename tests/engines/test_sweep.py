"""A sample of the sweep, and that it sees a difference; `python -m tests.engines.sweep` is the whole."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from fedappeal.settings.config import RunConfig
from fedappeal.simulation.options import LAYERS
from tests.engines.sweep import ENGINES, allowed, compare, differences, outcome

SAMPLE = 4


@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_random_run_is_the_same_in_every_engine(number: int) -> None:
    config, counted = next(islice(allowed(SAMPLE, seed=2), number, None)), Counter[str]()
    assert list(compare(config, counted)) == []
    assert counted.total() >= 2


def test_the_sweep_sees_other_noise(tmp_path: Path) -> None:
    config = RunConfig.parse({"task": "digits", "clients": 4, "rounds": 2, "local-steps": 3, "solo.steps": 3})
    one, other = (
        outcome(config.model_copy(update={"dropout_noise": noise}), ENGINES[LAYERS], tmp_path / noise)
        for noise in ("keyed", "stream")
    )
    assert [line.partition(" by ")[0] for line in differences(one, other, 1e-5)] == ["the models"]
