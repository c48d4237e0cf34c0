"""The charts of a comparison: curves of groups with bands, and paired differences."""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from fedappeal.views.comparison.curves import by_round
from fedappeal.views.comparison.figures import COLOURS
from fedappeal.views.comparison.measures import Line, Measure, joined_share
from fedappeal.views.comparison.result import Comparison
from fedappeal.views.comparison.statistics import Interval
from fedappeal.views.report.chart import DASHES, LEGEND, MOST_POINTS, Chart, chart_of


def curves(found: Comparison) -> list[Chart]:
    """Return GM-Appeal, metric, participation, clients served and loss over the rounds: a line and a band a group."""
    metric, joined = found.metric, joined_share()
    no_bound, share = math.inf, metric.is_share
    measured = (100.0, 100.0) if share else (1.0, no_bound)
    shown: tuple[tuple[str, Callable[[Line], float | None], float, float], ...] = (
        ("GM-Appeal", lambda line: line.get("gm_appeal"), 1.0, 1.0),
        (f"Test {metric.heading}", lambda line: line.get(metric.column), *measured),
        ("Joined, % of those asked", lambda line: joined([line]), 100.0, 100.0),
        ("Served as well as alone, % of clients", lambda line: line.get("served"), 100.0, 100.0),
        ("Test loss", lambda line: line.get("loss"), 1.0, no_bound),
    )
    charts = [_curve(found, *each) for each in shown]
    return [chart for chart in charts if chart is not None]


def _curve(
    found: Comparison, title: str, of: Callable[[Line], float | None], scale: float, highest: float
) -> Chart | None:
    """Return a measure's curves; a share's band ends at 0 and at its highest value."""
    traces: list[dict[str, Any]] = []
    said = []
    for place, group in enumerate(found.groups):
        values = by_round([(run.seed, run.lines) for run in group.runs], of)
        points = thinned({number: Interval.of(each) for number, each in values.items()})
        if not points:
            continue
        rounds, means = list(points), [scale * each.mean for each in points.values()]
        colour = COLOURS[place % len(COLOURS)]
        line = {"color": colour, "dash": DASHES[place % len(DASHES)], "width": 2}
        if all(each.half is not None for each in points.values()):
            lowest = 0.0 if math.isfinite(highest) else -math.inf
            low = [max(scale * (each.mean - (each.half or 0.0)), lowest) for each in points.values()]
            high = [min(scale * (each.mean + (each.half or 0.0)), highest) for each in points.values()]
            band = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
            traces.append({"type": "scatter", "x": rounds, "y": low, **band})
            traces.append(
                {"type": "scatter", "x": rounds, "y": high, "fill": "tonexty", "fillcolor": _faint(colour), **band}
            )
        mode = "lines" if len(rounds) > 1 else "markers"
        traces.append({"type": "scatter", "x": rounds, "y": means, "mode": mode, "line": line, "name": group.label})
        said.append(f"{group.label}: {means[0]:.3g} in round {rounds[0]}, {means[-1]:.3g} in round {rounds[-1]}")
    if not traces:
        return None
    alt = f"{title} over the rounds. {'; '.join(said)}."
    axes = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": title}, "rangemode": "tozero"}}
    return chart_of(title, alt, traces, {**axes, "showlegend": len(found.groups) > 1, "legend": LEGEND})


def thinned(points: Mapping[int, Interval]) -> dict[int, Interval]:
    """Return at most `MOST_POINTS` of the rounds' intervals: the means of neighbours, at the last of them."""
    numbers, size = list(points), -(-len(points) // MOST_POINTS)
    if size <= 1:
        return dict(points)
    found = {}
    for start in range(0, len(numbers), size):
        part = [points[number] for number in numbers[start : start + size]]
        halves = [each.half for each in part if each.half is not None]
        half = fmean(halves) if len(halves) == len(part) else None
        last = numbers[min(start + size, len(numbers)) - 1]
        found[last] = Interval(fmean(each.mean for each in part), half, part[0].n)
    return found


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def differences_chart(found: Comparison) -> Chart | None:
    """Return the paired differences from the baseline with their intervals: a row a group and measure."""
    measures = [m for m in found.measures if m.key in ("gm_appeal", "joined", "served", found.metric.column)]
    traces, said = [], []
    for place, measure in enumerate(measures):
        named = [(group, found.of(group, measure)) for group in found.groups if group != found.baseline]
        known = [(group.label, r.difference.interval) for group, r in named if r is not None and r.difference]
        if not known:
            continue
        scale = _scale(measure)
        x = [scale * interval.mean for _, interval in known]
        spread = [scale * (interval.half or 0.0) for _, interval in known]
        y = [f"{label}: {measure.title}" for label, _ in known]
        marker = {"color": COLOURS[place % len(COLOURS)], "size": 9}
        error = {"type": "data", "array": spread}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": x,
                "y": y,
                "error_x": error,
                "marker": marker,
                "name": measure.title,
            }
        )
        said += [f"{row} {value:+.3g} ± {half:.2g}" for row, value, half in zip(y, x, spread, strict=True)]
    if not traces:
        return None
    title = f"Differences from {found.baseline.label}, paired over seeds"
    alt = f"{title}, in points of 100: {'; '.join(said)}."
    axes = {
        "xaxis": {"title": {"text": "difference, in points of 100"}, "zeroline": True},
        "yaxis": {"automargin": True, "type": "category"},
    }
    return chart_of(title, alt, traces, {**axes, "showlegend": False})


def _scale(measure: Measure) -> float:
    """Return what makes a measure points of 100, so that shares stand beside percentages."""
    return 100.0 if measure.key == "gm_appeal" else measure.scale
