"""A report as one HTML page: sentences, charts, tables; for screens and paper, light and dark, wide and narrow."""

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import quote

from fedappeal.views.comparison.table import Table
from fedappeal.views.report.charts import Chart

_FIGURES = "figures"
"""Id of the element that holds the charts' data."""
DRAWING = files("fedappeal.views.report").joinpath("drawing.js").read_text()
"""The script that draws one of them."""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading.
        sentences: what came out, in words.
        charts: its charts.
        tables: its tables; those with ``folded`` are opened by a click.
        folded: tables that few readers need.
    """

    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


def inline_script(code: str) -> str:
    """Return the element that holds a script."""
    return f"<script>{code.replace('</script', chr(60) + chr(92) + '/script')}</script>"


def linked_script(file: str) -> str:
    """Return the element that loads a script from a file; ``file``: where it is, as the page's links say it."""
    return f'<script src="{html.escape(quote(file))}"></script>'


def page(title: str, sections: Sequence[Section], script: str) -> str:
    """Return the page; ``script``: the element with Plotly's script.

    All texts of others (ids, reasons, settings) are escaped; charts travel as JSON that no text can leave.
    """
    charts = [chart for section in sections for chart in section.charts]
    numbers = iter(range(len(charts)))
    body = "".join(_section(section, numbers) for section in sections)
    template = files("fedappeal.views.report").joinpath("page.html").read_text()
    parts = {
        "TITLE": html.escape(title),
        "BODY": body,
        "FIGURES": _data(charts),
        "SCRIPT": script,
        "DRAWING": DRAWING,
    }
    before, *others = template.split("{{")
    return before + "".join(parts[name] + rest for name, rest in (each.split("}}", 1) for each in others))


def _section(section: Section, numbers: Iterable[int]) -> str:
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in section.sentences)
    charts = "".join(_chart(chart, number) for chart, number in zip(section.charts, numbers, strict=False))
    tables = "".join(map(_table, section.tables))
    folded = "".join(
        f"<details><summary>{html.escape(table.title)}</summary>{_table(table, False)}</details>"
        for table in section.folded
    )
    shown = f'<div class="charts">{charts}</div>' if charts else ""
    return f"<section><h2>{html.escape(section.title)}</h2>{said}{shown}{tables}{folded}</section>"


def _chart(chart: Chart, number: int) -> str:
    kind = "chart tall" if chart.tall else "chart"
    alt = html.escape(chart.alt)
    return (
        f'<figure><h3>{html.escape(chart.title)}</h3><div class="{kind}" id="chart-{number}" role="img" '
        f'aria-label="{alt}"></div><figcaption>{alt}</figcaption></figure>'
    )


def _table(table: Table, titled: bool = True) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in table.header)
    rows = "".join(f"<tr>{_row(row)}</tr>" for row in table.rows)
    title = f"<h3>{html.escape(table.title)}</h3>" if titled else ""
    return f'{title}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(row: Sequence[str]) -> str:
    first, *others = row
    return f'<th scope="row">{html.escape(first)}</th>' + "".join(f"<td>{html.escape(cell)}</td>" for cell in others)


def _data(charts: Sequence[Chart]) -> str:
    """Return the charts' data as the text of a script element that is not run: no ``<`` is in it."""
    from plotly.utils import PlotlyJSONEncoder

    text = json.dumps([chart.figure for chart in charts], cls=PlotlyJSONEncoder)
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{_FIGURES}">{text}</script>'
