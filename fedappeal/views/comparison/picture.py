"""A comparison over the rounds: a panel a measure, a colour and band a group."""

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.curves import by_round
from fedappeal.views.comparison.figures import COLOURS, DASHES, check_plots, new_figure, repeatable
from fedappeal.views.comparison.groups import Group
from fedappeal.views.comparison.measures import Line, joined_share
from fedappeal.views.comparison.result import Comparison
from fedappeal.views.comparison.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDINGS = (".png", ".svg")
_LEGEND = 110
"""Characters of the legend's lines."""
_LINE = 0.24
"""Height of one of them, in inches."""
BAND = "lines: mean over seeds; bands: 95 % interval (Student's t)"


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn into a file.

    Raises:
        ConfigError: another ending, or matplotlib is not installed.
    """
    if path.suffix not in _ENDINGS:
        raise ConfigError(f"plot = '{path}' is not allowed: a file that ends in {' or '.join(_ENDINGS)}")
    check_plots()


def draw_comparison(comparisons: Sequence[Comparison]) -> "Figure":
    """Return a figure: GM-Appeal, the metric, participation and loss of each task, in four panels."""
    labels = list(dict.fromkeys(group.label for found in comparisons for group in found.groups))
    shown = [textwrap.fill(label, _LEGEND) for label in labels]
    columns = max(1, min(len(shown), _LEGEND // (8 + max(len(line) for line in shown))))
    legend_lines = sum(text.count("\n") + 1 for text in shown) / columns + 2
    figure = new_figure(12, 6 * len(comparisons) + _LINE * legend_lines)
    grid = figure.subplots(2 * len(comparisons), 2, squeeze=False)
    for row, found in enumerate(comparisons):
        panels = grid[2 * row : 2 * row + 2].flatten()
        where = f"{found.baseline.task}: " if len(comparisons) > 1 else ""
        for axes, panel in zip(panels, _panels(found.metric), strict=True):
            for group in found.groups:
                _curve(axes, group, panel, labels.index(group.label))
            axes.set(xlabel="round", ylabel=where + panel.title)
            axes.locator_params(axis="x", integer=True)
            axes.grid(alpha=0.3)
    handles: dict[str, Artist] = {}
    for axes in grid.flatten():
        handles |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    several = any(len(group.seeds) > 1 for found in comparisons for group in found.groups)
    figure.legend(
        [handles[label] for label in labels],
        shown,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=BAND if several else "one seed: no bands",
    )
    return figure


@dataclass(frozen=True)
class _Panel:
    """One of the pictures.

    Attributes:
        title: of the vertical axis.
        of: the value of one round.
        scale: what it is multiplied with to be shown.
        share: whether it is between 0 and 1, so that a band ends there.
    """

    title: str
    of: Callable[[Line], float | None]
    scale: float = 1.0
    share: bool = False


def _panels(metric: Metric) -> tuple[_Panel, ...]:
    joined = joined_share()
    return (
        _Panel("GM-Appeal", lambda line: line.get("gm_appeal"), share=True),
        _Panel(
            f"test {metric.heading}",
            lambda line: line.get(metric.column),
            100.0 if metric.is_share else 1.0,
            metric.is_share,
        ),
        _Panel("joined, % of those asked", lambda line: joined([line]), 100.0, share=True),
        _Panel("test loss", lambda line: line.get("loss")),
    )


def _curve(axes: "Axes", group: Group, panel: _Panel, place: int) -> None:
    values = by_round([(run.seed, run.lines) for run in group.runs], panel.of)
    points = {number: Interval.of(found) for number, found in values.items()}
    colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
    means = [panel.scale * interval.mean for interval in points.values()]
    marker = "o" if len(points) == 1 else ""  # no line goes through a single round
    axes.plot(list(points), means, marker=marker, color=colour, linestyle=dashes, linewidth=1.4, label=group.label)
    bands = {number: (i.low, i.high) for number, i in points.items() if i.low is not None and i.high is not None}
    low = [panel.scale * (max(band[0], 0.0) if panel.share else band[0]) for band in bands.values()]
    high = [panel.scale * (min(band[1], 1.0) if panel.share else band[1]) for band in bands.values()]
    axes.fill_between(list(bands), low, high, color=colour, alpha=0.15, linewidth=0)
    if panel.share:  # a line that is level at its highest would get as much room above it as below
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, -0.02 * panel.scale), min(top, 1.02 * panel.scale))


def picture_bytes(figure: "Figure", ending: str) -> bytes:
    """Return a figure as a file's content.

    Args:
        figure: the figure.
        ending: ``.png`` or ``.svg``.
    """
    written = io.BytesIO()
    undated = {"Date": None} if ending == ".svg" else None
    with repeatable():
        figure.savefig(written, format=ending.removeprefix("."), dpi=90, metadata=undated)
    return written.getvalue()
