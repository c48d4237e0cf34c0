"""A chart of a report: a Plotly figure with a title, and in words what it shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedappeal.settings.config import ConfigError

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARGIN = {"l": 60, "r": 12, "t": 8, "b": 48}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
MOST_POINTS = 1000
"""Points of a curve; where there are more rounds, each is the mean of several."""


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


def check_plotly() -> None:
    """Check that reports can be written.

    Raises:
        ConfigError: Plotly is not installed; names the extra.
    """
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise ConfigError("reports need Plotly: pip install 'fedappeal[report]'") from None


def chart_of(title: str, alt: str, traces: Sequence[Any], layout: Mapping[str, Any], tall: bool = False) -> Chart:
    """Return a chart without colours of a page: the page gives it its own."""
    import plotly.graph_objects as go

    figure = go.Figure(traces, layout={"template": "none", "margin": MARGIN, **layout})
    return Chart(title, alt, figure.to_plotly_json(), tall)
