"""Curves over rounds, and the picture."""

import math
from pathlib import Path

import pytest

from fedappeal.views.comparison.curves import BAND, by_round, draw_comparison
from fedappeal.views.comparison.measures import COLOURS, DASHES, picture_bytes
from fedappeal.views.comparison.recorded_runs import read_runs
from fedappeal.views.comparison.result import compare_runs
from tests.views.comparison.recorded import a_run


def test_values_by_round_by_hand() -> None:
    histories = [
        (0, [{"round": 1, "v": 1.0}, {"round": 2, "v": 2.0}]),
        (0, [{"round": 1, "v": 3.0}]),
        (1, [{"round": 1, "v": 5.0}, {"round": 2}, {"round": 3, "v": float("inf")}, {"round": 4, "v": 4.0}]),
    ]
    assert by_round(histories, lambda line: line.get("v")) == {1: [2.0, 5.0], 2: [2.0], 4: [4.0]}
    diverged = (2, [{"round": 1, "v": 7.0}, {"round": 2, "v": 8.0, "evaluated": 1, "expected": 3}])
    assert by_round([*histories, diverged], lambda line: line.get("v")) == {1: [2.0, 5.0, 7.0]}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for strategy, shift in (("fedavg", 0.0), ("maxfl", 0.5)):
        for seed in (0, 1, 2):
            lines = [{"accuracy": shift + 0.1 * seed, "loss": 1.0 - shift, "gm_appeal": shift}] * 2
            a_run(tmp_path / f"{strategy}-{seed}", lines, strategy=strategy, seed=seed)
    return tmp_path


def test_one_colour_and_one_band_a_group(runs: Path) -> None:
    figure = draw_comparison(compare_runs(read_runs(runs)[0]))
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_color() for line in axes.lines] == list(COLOURS[:2])
        assert [line.get_label() for line in axes.lines] == ["fedavg", "maxfl"]
        assert len(axes.collections) == 2
    accuracy = next(axes for axes in figure.axes if axes.get_ylabel() == "test accuracy %")
    assert list(accuracy.lines[1].get_ydata()) == pytest.approx([60.0, 60.0])  # type: ignore[arg-type]
    band = accuracy.collections[1].get_paths()[0].vertices
    assert (min(y for _, y in band), max(y for _, y in band)) == pytest.approx((35.70470, 80.20465))  # of 60
    below = accuracy.collections[0].get_paths()[0].vertices
    assert min(y for _, y in below) == pytest.approx(1.154468)  # of 10, s = 10: no share is negative
    (legend,) = figure.legends
    assert legend.get_title().get_text() == BAND
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "maxfl"]


def test_the_legend_stands_outside_of_the_panels(runs: Path) -> None:
    for n in range(12):
        a_run(
            runs / f"long-{n}",
            [{"accuracy": 0.5}],
            participation="appeal=0.5,always=0.5",
            **{"maxfl.server-lr": 0.5 + n},
        )
    figure = draw_comparison(compare_runs(read_runs(runs)[0]))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    for axes in figure.axes:
        assert axes.get_window_extent().y0 >= box.y1
    assert math.gcd(len(COLOURS), len(DASHES)) == 1  # a colour comes back with other dashes


def test_tasks_have_panels_of_their_own_and_one_colour_a_strategy(runs: Path) -> None:
    a_run(runs / "other", [{"accuracy": 0.5}], task="synth", strategy="maxfl")
    a_run(runs / "others", [{"accuracy": 0.5}], task="synth", strategy="fedavg")
    figure = draw_comparison(compare_runs(read_runs(runs)[0]))
    assert [axes.get_ylabel() for axes in figure.axes][::4] == ["digits: GM-Appeal", "synth: GM-Appeal"]
    colours = {(line.get_label(), line.get_color()) for axes in figure.axes for line in axes.lines}
    assert colours == {("fedavg", COLOURS[0]), ("maxfl", COLOURS[1])}


def test_a_picture_is_the_same_each_time(runs: Path) -> None:
    found = compare_runs(read_runs(runs)[0])
    first, again = (picture_bytes(draw_comparison(found), ".svg") for _ in range(2))
    assert first == again
    assert b"</svg>" in first
    assert picture_bytes(draw_comparison(found), ".png").startswith(b"\x89PNG")
