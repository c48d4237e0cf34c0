"""Figure 3's own measure, against numbers worked out by hand."""

import pytest

from fedappeal.reproductions import load_experiment


def together(*pairs: tuple[float, float]) -> float | None:
    lines = [{"round": 1}, *({"gm_appeal": appeal, "preferred_accuracy": accuracy} for appeal, accuracy in pairs)]
    (measure,) = (m for m in load_experiment("maxfl-figure3").measures if m.key == "together")
    return measure.number(lines)


def test_the_correlation_of_appeal_and_accuracy() -> None:
    # Deviations (-1, 0, 1) and (-2, 1, 1): 3 / sqrt(2 * 6).
    assert together((0.0, 0.5), (0.1, 0.8), (0.2, 0.8)) == pytest.approx(3 / 12**0.5)
    assert together((0.0, 0.9), (0.1, 0.8)) == pytest.approx(-1.0)


def test_there_is_none_where_one_of_them_never_changes() -> None:
    assert together() is None
    assert together((0.1, 0.9)) is None
    assert together((0.0, 0.5), (0.0, 0.8)) is None
    assert together((0.0, 0.8), (0.1, 0.8)) is None
