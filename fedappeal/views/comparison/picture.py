"""A comparison over the rounds: a panel a measure, a colour and band a group."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedappeal.record.columns import PICTURE, Column
from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.curves import Curve, panels
from fedappeal.views.comparison.figures import COLOURS, DASHES, check_plots, new_figure, repeatable
from fedappeal.views.comparison.result import Comparison

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
    charts = [panels(found, PICTURE) for found in comparisons]
    rows = -(-len(charts[0]) // 2)
    figure = new_figure(12, 3 * rows * len(comparisons) + _LINE * legend_lines)
    grid = figure.subplots(rows * len(comparisons), 2, squeeze=False)
    for row, (found, columns_shown) in enumerate(zip(comparisons, charts, strict=True)):
        where = f"{found.baseline.task}: " if len(comparisons) > 1 else ""
        for axes, (column, curves) in zip(grid[rows * row : rows * (row + 1)].flatten(), columns_shown, strict=False):
            for curve in curves:
                _draw(axes, curve, column, labels.index(curve.label))
            axes.set(xlabel="round", ylabel=where + column.title)
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


def _draw(axes: "Axes", curve: Curve, column: Column, place: int) -> None:
    colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
    marker = "o" if len(curve.rounds) == 1 else ""  # no line goes through a single round
    axes.plot(
        curve.rounds, curve.means, marker=marker, color=colour, linestyle=dashes, linewidth=1.4, label=curve.label
    )
    points = zip(curve.rounds, curve.low, curve.high, strict=True)
    bands = [(n, low, high) for n, low, high in points if low is not None and high is not None]
    rounds, low, high = zip(*bands, strict=True) if bands else ((), (), ())
    axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    if column.is_share:  # a line that is level at its highest would get as much room above it as below
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, -0.02 * column.scale), min(top, 1.02 * column.scale))


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
