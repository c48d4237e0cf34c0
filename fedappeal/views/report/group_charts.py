"""The charts of a comparison: curves of groups with bands, and paired differences."""

from collections.abc import Sequence
from typing import Any

from fedappeal.record.columns import CHART, HEADLINE, Column, shown_in
from fedappeal.views.comparison.curves import Curve, panels
from fedappeal.views.comparison.figures import COLOURS
from fedappeal.views.comparison.result import Comparison
from fedappeal.views.report.chart import DASHES, LEGEND, MOST_POINTS, Chart, chart_of


def curves(comparison: Comparison) -> list[Chart]:
    """Return the catalogue's charts over the rounds: a line and a band a group."""
    charts = [_chart(column, lines) for column, lines in panels(comparison, CHART, MOST_POINTS)]
    return [chart for chart in charts if chart is not None]


def _chart(column: Column, groups: Sequence[Curve]) -> Chart | None:
    title = column.title[0].upper() + column.title[1:]
    traces: list[dict[str, Any]] = []
    words = []
    for curve in groups:
        rounds, means = list(curve.rounds), list(curve.means)
        if not rounds:
            continue
        colour = COLOURS[curve.place % len(COLOURS)]
        if None not in curve.low:
            band = {"type": "scatter", "x": rounds, "mode": "lines", "line": {"width": 0}, "showlegend": False}
            band["hoverinfo"] = "skip"
            filled = {"fill": "tonexty", "fillcolor": _faint(colour)}
            traces += [{**band, "y": list(curve.low)}, {**band, "y": list(curve.high), **filled}]
        mode = "lines" if len(rounds) > 1 else "markers"
        line = {"color": colour, "dash": DASHES[curve.place % len(DASHES)], "width": 2}
        traces.append({"type": "scatter", "x": rounds, "y": means, "mode": mode, "line": line, "name": curve.label})
        words.append(f"{curve.label}: {means[0]:.3g} in round {rounds[0]}, {means[-1]:.3g} in round {rounds[-1]}")
    if not traces:
        return None
    alt = f"{title} over the rounds. {'; '.join(words)}."
    axes = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": title}, "rangemode": "tozero"}}
    return chart_of(title, alt, traces, {**axes, "showlegend": len(groups) > 1, "legend": LEGEND})


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def differences_chart(comparison: Comparison) -> Chart | None:
    """Return the paired differences from the baseline with their intervals: a row a group and measure."""
    headline = {column.key for column in shown_in(HEADLINE, comparison.metric)}
    charted = [c for c in shown_in(CHART, comparison.metric) if c.is_share or c.key in headline]
    keys = {column.key.partition("/")[0]: column for column in charted}
    traces, words = [], []
    for place, measure in enumerate(m for m in comparison.measures if m.key in keys):
        results = [(g, comparison.of(g, measure)) for g in comparison.groups if g != comparison.baseline]
        known = [(group.label, r.difference.interval) for group, r in results if r is not None and r.difference]
        if not known:
            continue
        # Shares stand beside percentages, in points of 100.
        scale = 100.0 if keys[measure.key].is_share else measure.scale
        x = [scale * interval.mean for _, interval in known]
        spread = [scale * (interval.half or 0.0) for _, interval in known]
        y = [f"{label}: {measure.title}" for label, _ in known]
        marker = {"color": COLOURS[place % len(COLOURS)], "size": 9}
        points = {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "name": measure.title}
        traces.append({**points, "error_x": {"type": "data", "array": spread}})
        words += [f"{row} {value:+.3g} ± {half:.2g}" for row, value, half in zip(y, x, spread, strict=True)]
    if not traces:
        return None
    title = f"Differences from {comparison.baseline.label}, paired over seeds"
    alt = f"{title}, in points of 100: {'; '.join(words)}."
    axes = {
        "xaxis": {"title": {"text": "difference, in points of 100"}, "zeroline": True},
        "yaxis": {"automargin": True, "type": "category"},
    }
    return chart_of(title, alt, traces, {**axes, "showlegend": False})
