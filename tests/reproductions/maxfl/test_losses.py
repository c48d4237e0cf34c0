"""Figure 6's own measures and claims, against numbers worked out by hand."""

import pytest

from fedappeal.reproductions import load_experiment
from fedappeal.views.comparison.measures import Lines
from tests.studies.small import holds

EXPERIMENT = load_experiment("maxfl-figure6")


def rounds(*pairs: tuple[float, float]) -> Lines:
    """Return a run's lines, of test and training loss, with a round that is not evaluated before each."""
    found = []
    for n, (test, train) in enumerate(pairs):
        found += [{"round": 2 * n + 1, "expected": 0, "evaluated": 0}]
        found += [{"round": 2 * n + 2, "expected": 9, "evaluated": 9, "loss": test, "train_loss": train}]
    return found


def measured(lines: Lines) -> dict[str, float | None]:
    return {measure.key: measure.number(lines) for measure in EXPERIMENT.measures}


def holding(arm: str, lines: Lines) -> list[bool]:
    """Return whether the losses are near, and whether they move together."""
    numbers = measured(lines)
    claims = [claim for claim in EXPERIMENT.claims if claim.text.startswith(f"{arm}:")]
    return [holds(claim, lambda _, key: numbers[key] or 0.0) for claim in claims]


def test_measures() -> None:
    found = measured(rounds((2.0, 2.0), (1.0, 1.5), (3.0, 2.9)))
    assert found["first-loss"] == 2
    assert found["test-loss"] == 3
    assert found["gap"] == pytest.approx(0.1)
    assert found["largest-gap"] == pytest.approx(0.5), "also where it is the training loss that is higher"
    # Deviations (0, -1, 1) and (-4, -19, 23) / 30: 42 / sqrt(2 * 906).
    assert found["correlation"] == pytest.approx(42 / 1812**0.5)


def test_a_gap_in_one_round_is_enough_to_fail() -> None:
    near = ((2.0, 2.0), (1.5, 1.45), (1.0, 1.0))
    assert holding("FedAvg, clusters", rounds(*near)) == [True, True]
    assert holding("FedAvg, clusters", rounds(*near, (1.12, 1.0), *near)) == [False, True]
    assert holding("FedAvg, clusters", rounds((2.0, 2.1), (1.9, 2.0), (2.0, 2.0))) == [True, False]


def test_a_loss_that_blows_up_passes_no_sooner() -> None:
    assert holding("MaxFL, Dirichlet", rounds((2.0, 2.0), (400.0, 399.8))) == [False, True]


def test_two_labels_are_guessed_more_easily() -> None:
    """5 % of ln 2 is 0.035, of ln 10 0.115."""
    lines = rounds((0.7, 0.7), (0.6, 0.56))
    assert holding("MaxFL, Sent140", lines)[0] is False
    assert holding("MaxFL, clusters", lines)[0] is True


def test_there_is_no_number_where_the_model_diverged_or_nothing_changes() -> None:
    lines = [*rounds((2.0, 2.0), (1.0, 1.0)), {"round": 5, "expected": 9, "evaluated": 0}]
    found = measured(lines)
    assert [found[key] for key in ("first-loss", "gap", "largest-gap", "correlation")] == [None] * 4
    assert measured([])["largest-gap"] is None
    assert measured(rounds((2.0, 1.0), (2.0, 1.5)))["correlation"] is None
