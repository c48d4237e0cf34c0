"""The charts of a report, as Plotly figures.

Curves of groups and differences; one run's clients, bytes and time.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape  # Plotly reads its texts as a small HTML, links included
from pathlib import Path
from typing import Any

import numpy as np

from fedappeal.core.requirement import LOSS, METRIC
from fedappeal.protocol.metric import Metric
from fedappeal.record.columns import CHART, HEADLINE, Column, shown_in
from fedappeal.record.looks import ABSENT, JOINED, LOOKS, SAT_OUT
from fedappeal.record.reader import Snapshot
from fedappeal.system.wording import plural
from fedappeal.views.comparison.curves import Curve, panels, thin_indices
from fedappeal.views.comparison.measures import COLOURS, Line
from fedappeal.views.comparison.result import Comparison
from fedappeal.views.report.recorded import MOST_CLIENTS, DecisionGrid, MeasuredClient

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARGIN = {"l": 60, "r": 12, "t": 8, "b": 48}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MOST_POINTS = 1000
"""Points of a curve, two for each pixel of its width; of more rounds the lowest and highest values stay."""


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        title: its heading.
        alt: what it shows, in words, for a reader who does not see it.
        figure: data and layout, as Plotly's JSON has them.
        tall: whether it needs more height than others.
    """

    title: str
    alt: str
    figure: Mapping[str, Any]
    tall: bool = False


PLOTLY = Path(__file__).with_name("plotly-cartesian.min.js")
"""Plotly's script without maps and three dimensions, a third of the whole one: browsers start it sooner."""
RELEASE = "4.1.1"
"""The script's."""


def chart_of(title: str, alt: str, traces: Sequence[Any], layout: Mapping[str, Any], tall: bool = False) -> Chart:
    """Return a chart without colours of a page: the page gives it its own."""
    return Chart(title, alt, {"data": list(traces), "layout": {"margin": MARGIN, **layout}}, tall)


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


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
    axes = {"xaxis": _axis("round"), "yaxis": _axis(title, rangemode="tozero")}
    one = {"meta": {"column": column.key, "scale": column.scale}} if len(traces) == 1 else {}
    return chart_of(title, alt, traces, {**axes, **one, "showlegend": len(groups) > 1, "legend": LEGEND})


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def differences_chart(comparison: Comparison) -> Chart | None:
    """Return the chart of paired differences from the baseline, with intervals.

    A row a group and measure.
    """
    headline = {column.key for column in shown_in(HEADLINE, comparison.metric)}
    charted = [c for c in shown_in(CHART, comparison.metric) if c.is_share or c.key in headline]
    keys = {column.key.partition("/")[0]: column for column in charted}
    traces, words = [], []
    for place, measure in enumerate(m for m in comparison.measures if m.key in keys):
        results = [(g, comparison.of(g, measure)) for g in comparison.groups if g != comparison.baseline]
        differences = [(group.label, r.difference.interval) for group, r in results if r is not None and r.difference]
        if not differences:
            continue
        # Shares stand beside percentages, in points of 100.
        scale = 100.0 if keys[measure.key].is_share else measure.scale
        x = [scale * interval.mean for _, interval in differences]
        ends = [None if i.low is None or i.high is None else (scale * i.low, scale * i.high) for _, i in differences]
        y = [f"{label}: {measure.title}" for label, _ in differences]
        marker = {"color": COLOURS[place % len(COLOURS)], "size": 9}
        points = {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "name": measure.title}
        if any(ends):
            bars = [
                (value - end[0], end[1] - value) if end else (None, None) for value, end in zip(x, ends, strict=True)
            ]
            below, above = zip(*bars, strict=True)
            points["error_x"] = {"type": "data", "array": above, "arrayminus": below}
        traces.append(points)
        brackets = [f" [{end[0]:+.3g}, {end[1]:+.3g}]" if end else "" for end in ends]
        words += [f"{row} {value:+.3g}{text}" for row, value, text in zip(y, x, brackets, strict=True)]
    if not traces:
        return None
    title = f"Differences from {comparison.baseline.label}, paired over seeds"
    alt = f"{title}, in points of 100: {'; '.join(words)}."
    x_axis, y_axis = _axis("difference, in points of 100", zeroline=True), {"automargin": True, "type": "category"}
    return chart_of(title, alt, traces, {"xaxis": x_axis, "yaxis": y_axis, "showlegend": False})


MOST_NAMED = 40
"""Clients whose names stand below a chart: more cannot be read."""
_OTHER = "#000000"
"""Colour of a decision that is none of ours."""
MOST_BARS = 60
"""Rounds that are drawn as bars, an element each; of more, each decision is one area."""
NOT_TOLD = (
    "What each client requires is not known here: no message carries it, so the server of a run of real clients is "
    "not told. Whether the model meets it is known where the owner lets the client report that."
)
AS_SENT = (
    "Figures are of the model as sent; whether it meets a requirement is judged of the model as its client uses it, "
    "after own steps or blended."
)
LONGEST_NAME = 18
"""Characters of a client's name below or beside a chart; the whole name is shown where the pointer is."""
_ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "thickness": 12, "len": 0.8}
"""Where the colours of a heat map are explained: beside it there is no room on a phone."""


def decisions_chart(participation: DecisionGrid) -> Chart:
    """Return the chart of decisions by round."""
    counts = participation.counts.sum(axis=1)
    width = [last - first + 1 for first, last in zip(participation.rounds, participation.last_rounds, strict=True)]
    traces, totals = [], []
    for word in _in_order(participation.decisions):
        colour, name = _look(word)
        values = counts[participation.decisions.index(word)] / width
        shape: dict[str, Any] = {"type": "bar", "marker": {"color": colour, "line": {"width": 0}}}
        if len(width) > MOST_BARS:
            line = {"width": 0, "shape": "hv"}
            shape = {"type": "scatter", "mode": "lines", "line": line, "stackgroup": "decisions", "fillcolor": colour}
        traces.append({**shape, "x": list(participation.rounds), "y": values.tolist(), "name": name})
        totals.append(f"{name} {int(counts[participation.decisions.index(word)].sum()):,}")
    axes = {"xaxis": _axis("round"), "yaxis": _axis("clients")}
    alt = f"What the clients decided in each round; in all: {', '.join(totals)}."
    title = "Joined, sat out, left"
    return chart_of(title, alt, traces, {**axes, "barmode": "stack", "bargap": 0, "legend": LEGEND})


def heat_map(participation: DecisionGrid) -> Chart:
    """Return who joined when: a row a client, a column a round."""
    rows = [escape(_range(*ends)) for ends in zip(participation.clients, participation.last_clients, strict=True)]
    columns = [str(number) for number in participation.rounds]  # the first of each cell: there is no room for more
    from_above = {"type": "category", "autorange": "reversed", "automargin": True}
    axes = {
        "xaxis": _axis("round", type="category", tickangle=0, **_ticks(columns, columns, 5)),
        "yaxis": {**from_above, **_ticks(rows, participation.clients, 20)},
    }
    size = f"{plural(len(rows), 'row')} of clients by {plural(len(columns), 'column')} of rounds"
    if participation.single:
        words = _in_order(participation.decisions)
        order = [participation.decisions.index(word) for word in words]
        counts = participation.counts[order]
        z = np.where(counts.sum(axis=0) > 0, counts.argmax(axis=0).astype(float), np.nan)
        styles = [_look(word) for word in words]
        scale = [(edge / len(words), colour) for n, (colour, _) in enumerate(styles) for edge in (n, n + 1)]
        look = {"colorscale": scale, "zmin": -0.5, "zmax": len(words) - 0.5, "showscale": False}
        # A legend breaks into lines where a colour bar would turn its words and cut them off.
        entry = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": True}
        square = {"symbol": "square", "size": 12}
        entries = [{**entry, "name": name, "marker": {**square, "color": colour}} for colour, name in styles]
        alt = f"Who joined when, {size}: {', '.join(name for _, name in styles)}, or not asked."
    else:
        z = participation.joined_share
        bar = {"title": {"text": "share joined", "side": "top"}, **_ABOVE}
        look, entries = {"colorscale": "Viridis", "zmin": 0, "zmax": 1, "colorbar": bar}, []
        alt = f"The share that joined of those asked, {size}; each cell holds several."
    packed = base64.b64encode(z.astype("<f4").tobytes()).decode()  # NaN, which JSON has not, is a client not asked
    cells = {"z": {"dtype": "f4", "bdata": packed, "shape": f"{len(rows)}, {len(columns)}"}, "x": columns, "y": rows}
    heat = {"type": "heatmap", **cells, "hoverongaps": False, "xgap": 0, "ygap": 0, **look}
    axes["legend"] = {**LEGEND, "itemclick": False, "itemdoubleclick": False}
    return chart_of("Who joined when", alt, [heat, *entries], axes, tall=len(rows) > 20)


def _in_order(words: Sequence[str]) -> list[str]:
    ordered = [word for word in LOOKS if word in words]
    return ordered + [word for word in words if word not in LOOKS]


def _look(word: str) -> tuple[str, str]:
    """Return a decision's colour, and its name in legends."""
    look = LOOKS.get(word)
    return (look.colour, look.title) if look else (_OTHER, escape(word))


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _ticks(categories: Sequence[str], names: Sequence[str], most: int) -> dict[str, Any]:
    """Return an axis' named categories, few and short enough for a phone."""
    step = -(-len(names) // most)
    short = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names[::step]]
    return {"tickmode": "array", "tickvals": list(categories[::step]), "ticktext": [escape(name) for name in short]}


def clients_chart(
    measured: Sequence[MeasuredClient], server_round: int, metric: Metric, judged_otherwise: bool = False
) -> Chart | None:
    """Return the chart of each client's metric, or loss and requirement.

    For the last evaluated model. ``judged_otherwise``: as `ReportedRun.judged_otherwise`.
    """
    by_loss = any(client.of == LOSS for client in measured)
    scale = 100.0 if metric.is_share and not by_loss else 1.0
    figures = [(c, value) for c in measured if (value := c.loss if by_loss else c.score) is not None]
    figures.sort(key=lambda pair: pair[1], reverse=True)
    step = -(-len(figures) // MOST_CLIENTS)
    figures = figures[::step] if figures else []
    if not figures:
        return None
    what = ("test loss" if by_loss else f"test {metric.heading}") + " as sent" * judged_otherwise
    names = [escape(client.client) for client, _ in figures]
    traces = []
    for appealed, colour, name in (
        (True, LOOKS[JOINED].colour, "the model meets its requirement"),
        (False, LOOKS[SAT_OUT].colour, "it does not"),
        (None, LOOKS[ABSENT].colour, "not told"),
    ):
        chosen = [(escape(client.client), scale * value) for client, value in figures if client.appealed is appealed]
        if chosen:
            x, y = zip(*chosen, strict=True)
            traces.append({"type": "bar", "x": x, "y": y, "name": name, "marker": {"color": colour}})
    required = [
        (escape(client.client), scale * client.requirement)
        for client, _ in figures
        if client.requirement is not None and client.of == (LOSS if by_loss else METRIC)
    ]
    if required:
        x, y = zip(*required, strict=True)
        marker = {"color": "#999999", "symbol": "line-ew-open", "size": 12, "line": {"width": 2}}
        traces.append({"type": "scatter", "mode": "markers", "x": x, "y": y, "name": "required", "marker": marker})
    served = sum(client.appealed is True for client in measured)
    every = f", of which one in {step} is shown" if step > 1 else ""
    alt = (
        f"{what} of {len(measured)} clients after round {server_round}{every}, the highest first: "
        f"{scale * figures[0][1]:.3g} to {scale * figures[-1][1]:.3g}; the model meets the requirement of {served}."
    )
    if all(client.requirement is None for client in measured):
        alt += f" {NOT_TOLD}"
    if judged_otherwise:
        alt += f" {AS_SENT}"
    axes = {
        "xaxis": {
            **{"type": "category", "categoryarray": names, "automargin": True, "showgrid": False},
            **_ticks(names, [client.client for client, _ in figures], MOST_NAMED),
            "showticklabels": len(names) <= MOST_NAMED,
        },
        "yaxis": _axis(what),
    }
    title = f"Clients and what they require, after round {server_round}"
    return chart_of(title, alt[0].upper() + alt[1:], traces, {**axes, "legend": LEGEND, "bargap": 0.1})


def costs_chart(lines: Sequence[Line]) -> Chart:
    """Return megabytes and seconds, by round."""
    traces: list[dict[str, Any]] = []
    for place, (key, name, scale, axis) in enumerate(
        (("bytes_up", "MB up", 1e-6, "y"), ("bytes_down", "MB down", 1e-6, "y"), ("seconds", "seconds", 1.0, "y2"))
    ):
        values = [scale * float(line.get(key) or 0.0) for line in lines]
        places = thin_indices(values, MOST_POINTS)
        points = {"x": [int(lines[k]["round"]) for k in places], "y": [values[k] for k in places]}
        line = {"color": COLOURS[place], "dash": DASHES[place], "width": 2}
        traces.append({"type": "scatter", **points, "name": name, "yaxis": axis, "line": line})
    totals = Snapshot(rounds=lines).totals
    megabytes = f"{totals['bytes_up'] / 1e6:,.1f} MB up, {totals['bytes_down'] / 1e6:,.1f} MB down"
    alt = f"Traffic and time of each round; in all {megabytes}, {totals['seconds']:,.1f} s."
    right = {"overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto"}
    axes = {
        "xaxis": _axis("round"),
        "yaxis": _axis("MB a round", rangemode="tozero"),
        "yaxis2": _axis("seconds a round", rangemode="tozero", **right),
    }
    return chart_of("Bytes and time", alt, traces, {**axes, "legend": LEGEND, "margin": {**MARGIN, "r": 60}})
