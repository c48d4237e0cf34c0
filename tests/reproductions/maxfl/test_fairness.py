"""Table 7: q-FFL at rates of its own."""

from fedappeal.reproductions import load_experiment
from tests.studies.small import holds

EXPERIMENT = load_experiment("maxfl-table7")
OWN = [arm for arm in EXPERIMENT.arms if "own-rate" in arm.name]


def test_their_rate_moves_training_alone() -> None:
    """The clients' requirement rho_k comes from the solo steps: they have to be those of the rows beside."""
    assert [
        (arm.settings["qfedavg.q"], arm.settings["learning-rate"], arm.settings["local-steps"]) for arm in OWN
    ] == [
        (1.0, 0.1, 10),
        (10.0, 0.1, 10),
        (10.0, 1.0, 1),
    ]
    for arm in OWN:
        settings = {**EXPERIMENT.settings, **arm.settings}
        for key in ("solo.learning-rate", "solo.steps", "batch-size", "rounds"):
            assert settings[key] == load_experiment("maxfl-table3").settings[key]
        assert arm.group == EXPERIMENT.arms[0].group
        assert arm.paper == next(a for a in EXPERIMENT.arms if a.name == arm.name.partition("-own")[0]).paper


def test_maxfl_is_compared_with_each_of_them() -> None:
    claims = [claim for claim in EXPERIMENT.claims if "own rate" in claim.text]
    assert len(claims) == 6
    assert all(claim.ours for claim in claims)
    numbers = {arm.name: 0.1 for arm in OWN} | {"maxfl": 0.2}
    assert all(holds(claim, lambda arm, _: numbers[arm]) for claim in claims)
    numbers[OWN[-1].name] = 0.3
    assert sum(not holds(claim, lambda arm, _: numbers[arm]) for claim in claims) == 2
