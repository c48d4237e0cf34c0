"""The benchmark at a look: by how much each strategy keeps more clients than FedAvg, and appeals to more."""

from collections.abc import Sequence
from pathlib import Path

from fedappeal.studies.bench.conclusions import Compared, compared
from fedappeal.studies.bench.design import BASELINE
from fedappeal.studies.bench.results import BenchResults
from fedappeal.views.comparison.figures import new_figure, save

FURTHER = "-further"
"""What the name of the picture of places with few strategies ends with."""

_PANELS = (
    ("kept", "clients that join at the end, % points against FedAvg"),
    ("gm-appeal", "GM-Appeal against FedAvg"),
)

Place = tuple[str, str]
"""A behaviour, and a task."""


def places(results: BenchResults) -> tuple[list[Place], list[Place]]:
    """Return where the most strategies beside the baseline were run, and where fewer were."""
    ran: dict[Place, int] = {}
    for cell in results.cells():
        if cell.strategy != BASELINE:
            ran[cell.behaviour, cell.task] = ran.get((cell.behaviour, cell.task), 0) + 1
    most = max(ran.values(), default=0)
    return [place for place, count in ran.items() if count == most], [p for p, count in ran.items() if count < most]


def draw(results: BenchResults, stem: Path) -> None:
    """Draw a heat map a headline, strategies by tasks and behaviours, and write ``stem.png`` and ``stem.svg``.

    Places where fewer strategies were run have a picture of their own, named with `FURTHER`. A difference within
    noise is in brackets. Where the baseline alone was run there is nothing to draw.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    whole, further = places(results)
    for shown, name in ((whole, stem.name), (further, stem.name + FURTHER)):
        if shown:
            _draw(results, shown, stem.with_name(name))


def _draw(results: BenchResults, shown: Sequence[Place], stem: Path) -> None:
    here = [cell.strategy for cell in results.cells() if (cell.behaviour, cell.task) in shown]
    names = [name for name in dict.fromkeys(here) if name != BASELINE]
    figure = new_figure(2.6 + 0.62 * len(shown) * len(_PANELS), 2.2 + 0.3 * len(names))
    for axes, (key, title) in zip(figure.subplots(1, len(_PANELS), sharey=True), _PANELS, strict=True):
        against = {
            (contrast.cell.strategy, contrast.cell.behaviour, contrast.cell.task): contrast
            for contrast in compared(results, (key,))
        }
        means = [[_mean(against.get((name, *place))) for place in shown] for name in names]
        most = max((abs(value) for row in means for value in row if value == value), default=0.0) or 1.0
        axes.imshow(means, cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto")
        axes.set_title(title, fontsize=9)
        labels = [f"{behaviour}, {task}" for behaviour, task in shown]
        axes.set_xticks(range(len(shown)), labels, fontsize=8, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names, fontsize=8)
        for y, name in enumerate(names):
            for x, place in enumerate(shown):
                text, strong = _shown(against.get((name, *place)))
                colour = "white" if abs(means[y][x]) > 0.6 * most else "black"
                axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=colour, weight=strong)
    save(figure, stem)


def _mean(contrast: Compared | None) -> float:
    return contrast.difference.interval.mean if contrast else float("nan")


def _shown(contrast: Compared | None) -> tuple[str, str]:
    """Return a cell's text and weight."""
    if contrast is None:
        return "-", "normal"
    text = f"{contrast.difference.interval.mean:+.{contrast.measure.digits}f}"
    return (text, "bold") if contrast.difference.verdict in ("better", "worse") else (f"({text})", "normal")
