"""A report of runs, written into a file: of one run in detail, of several by their groups."""

import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from fedappeal.record.columns import HEADLINE, PERCENT, SHARE, shown_in
from fedappeal.record.output import check_output
from fedappeal.record.reader import Snapshot
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file
from fedappeal.system.wording import plural
from fedappeal.views.comparison.export import left_out
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.recorded_runs import RecordedRun, find_runs, read_runs
from fedappeal.views.comparison.result import Comparison, Result, compare_runs, used_settings
from fedappeal.views.comparison.table import TextTable, comparison_tables, interval_text
from fedappeal.views.report import charts
from fedappeal.views.report.charts import Chart
from fedappeal.views.report.recorded import MOST_CLIENTS, NO_NAMES, ReportedRun, reported_run

_PAGE = files("fedappeal.views.report").joinpath("page.html").read_text("utf-8")
DRAWING = files("fedappeal.views.report").joinpath("drawing.js").read_text("utf-8")
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
    tables: Sequence[TextTable] = ()
    folded: Sequence[TextTable] = ()


def inline_script(code: str) -> str:
    """Return the element with Plotly's script.

    The page runs it once its text is painted.
    """
    return f'<script type="text/plain" id="plotly">{code.replace("</script", chr(60) + chr(92) + "/script")}</script>'


def linked_script(file: str) -> str:
    """Return the element that loads a script from a file.

    ``file``: where it is, as the page's links say it.
    """
    return f'<script src="{html.escape(quote(file))}"></script>'


def page(title: str, sections: Sequence[Section], script: str) -> str:
    """Return the page's HTML; ``script`` is the element with Plotly's script.

    All texts of others (ids, reasons, settings) are escaped; charts travel as JSON that no text can leave.
    """
    from jinja2 import Environment
    from jinja2.utils import htmlsafe_json_dumps

    figures = [chart.figure for section in sections for chart in section.charts]
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_PAGE)
    data = htmlsafe_json_dumps(figures)
    return template.render(title=title, sections=sections, figures=data, script=script, drawing=DRAWING)


REPORT = "report.html"


@dataclass(frozen=True)
class ReportOptions:
    """The options of a report.

    Attributes:
        output: its file; None: `REPORT` in the run's folder, or in the folder of runs that is named alone, else in
            the current one.
        baseline: of several groups, the one from which differences are; empty: FedAvg's, else the first.
        single_file: whether Plotly's script is in the page itself, which is then 2 MB large.
        names: what the clients of one run are called in place of their ids.
    """

    output: Path | None = None
    baseline: str = ""
    single_file: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


def write_report(
    paths: Sequence[Path], options: ReportOptions = ReportOptions(), warn: Callable[[str], None] = lambda line: None
) -> Path:
    """Write a report of runs; return its file.

    Nothing is written before all is read and made.

    Args:
        paths: folders of runs, or folders that hold such folders.
        options: how.
        warn: told one line of each damaged file.

    Raises:
        ConfigError: a folder holds no run with a finished round, a damaged file, or a file that cannot be written.
    """
    if options.output is not None:
        check_output("output", options.output)
    runs, empty = read_runs(list(paths))
    comparisons = compare_runs(runs, options.baseline)
    for line in (line for run in runs for line in run.damage):
        warn(line)
    alone = len(runs) == 1 and not empty
    if alone:
        folder = find_runs(paths[0])[0]
        title, sections = _of_one(reported_run(folder, runs[0], options.names), comparisons)
    else:
        folder = paths[0] if len(paths) == 1 else Path()
        title, sections = f"{plural(len(runs), 'run')} compared", _of_several(comparisons, empty)
    output = options.output or folder / REPORT
    shared = folder.absolute().parent if alone and options.output is None else output.absolute().parent
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        script = _script(shared, output, options.single_file)
        replace_file(output, page(title, sections, script).encode(), durable=False)
    except OSError as error:
        raise ConfigError(f"output = '{output}' cannot be written: {error.strerror}") from None
    return output


def report_text(path: Path, names: Mapping[str, str] = NO_NAMES) -> str:
    """Return a run's report with Plotly's script inside.

    With names for client-ids; errors as `write_report`.
    """
    runs, _ = read_runs([path])
    title, sections = _of_one(reported_run(path, runs[0], names), compare_runs(runs, ""))
    return page(title, sections, inline_script(charts.PLOTLY.read_text(encoding="utf-8")))


def _script(folder: Path, output: Path, inside: bool) -> str:
    """Return Plotly's script element: inline, or a file beside the runs.

    Written where it is missing.
    """
    if inside:
        return inline_script(charts.PLOTLY.read_text(encoding="utf-8"))
    file = folder / f"plotly-{charts.RELEASE}.min.js"
    code = charts.PLOTLY.read_bytes()
    if not file.is_file() or file.stat().st_size != len(code):
        replace_file(file, code, durable=False)
    return linked_script(Path(os.path.relpath(file, output.absolute().parent)).as_posix())


def run_charts(path: Path, names: Mapping[str, str] = NO_NAMES) -> tuple[str, list[charts.Chart]]:
    """Return a run's outcome so far in words, and its charts.

    Arguments as `report_text`.
    """
    runs, _ = read_runs([path])
    return run_verdict(runs[0]), _charts(reported_run(path, runs[0], names), compare_runs(runs, ""))


def _charts(shown: ReportedRun, comparisons: Sequence[Comparison]) -> list[charts.Chart]:
    run, drawn = shown.run, charts.curves(comparisons[0])
    if shown.participation is not None:
        drawn += [charts.decisions_chart(shown.participation), charts.heat_map(shown.participation)]
    server_round, clients = shown.measured
    measured = charts.clients_chart(clients, server_round, run.metric, shown.judged_otherwise)
    return drawn + ([measured] if measured else []) + [charts.costs_chart(run.lines)]


def _of_one(shown: ReportedRun, comparisons: Sequence[Comparison]) -> tuple[str, list[Section]]:
    run = shown.run
    settings = TextTable("Settings", ("setting", "value"), _rows(used_settings(run.settings).items()))
    facts = TextTable("Versions and runtime", ("", ""), _rows(shown.facts))
    drawn = Section("Over the rounds", charts=_charts(shown, comparisons))
    sections = [Section("What came out", [run_verdict(run)]), drawn]
    if shown.failures:
        failures = TextTable("Why replies are missing", ("reason", "times"), _rows(shown.failures))
        sections.append(Section("Missing replies", tables=[failures]))
    if (clients := _clients(shown)).rows:
        notes = [charts.AS_SENT] if shown.judged_otherwise else []
        sections.append(Section("The clients", notes, folded=[clients]))
    sections.append(Section("How it was run", folded=[settings, facts]))
    return f"{run.settings['strategy']} on {run.task}", sections


def _clients(shown: ReportedRun) -> TextTable:
    """Return the table of clients' evaluations and requirements, the first `MOST_CLIENTS`.

    Of the last evaluated model.
    """
    (server_round, clients), metric = shown.measured, shown.run.metric
    met = {True: "yes", False: "no", None: "not told"}
    scale = 100.0 if metric.is_share else 1.0
    rows = [
        (
            client.client,
            "-" if client.score is None else f"{scale * client.score:.4g}",
            "-" if client.loss is None else f"{client.loss:.4g}",
            met[client.appealed],
            "not told" if client.requirement is None else f"{client.of} {client.requirement:.4g}",
        )
        for client in clients[:MOST_CLIENTS]
    ]
    some = f", the first {MOST_CLIENTS} of {len(clients):,}" if len(clients) > MOST_CLIENTS else ""
    title = f"The model of round {server_round}, by client{some}"
    figures = (f"{name}{' as sent' * shown.judged_otherwise}" for name in (f"test {metric.heading}", "test loss"))
    return TextTable(title, ("client", *figures, "meets its requirement", "requires"), tuple(rows))


def _of_several(comparisons: Sequence[Comparison], empty: Sequence[str]) -> list[Section]:
    notes = [left_out(list(empty))] if empty else []
    sections = []
    for comparison in comparisons:
        verdicts = comparison_verdict(comparison) or [run_verdict(run) for run in comparison.baseline.runs]
        differences = charts.differences_chart(comparison)
        drawn = [*charts.curves(comparison), *([differences] if differences else [])]
        tables = comparison_tables([comparison])
        sections.append(Section(comparison.baseline.task, [*verdicts, *comparison.notes], drawn, tables))
    runs = [run for comparison in comparisons for group in comparison.groups for run in group.runs]
    folded = [TextTable("Runs", ("run", "settings that it used"), tuple((run.name, _settings(run)) for run in runs))]
    return [*sections, Section("The runs", notes, folded=folded)]


def _settings(run: RecordedRun) -> str:
    return ", ".join(f"{key}={value}" for key, value in used_settings(run.settings).items())


def _rows(pairs: Iterable[tuple[str, object]]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, str(value)) for name, value in pairs)


def run_verdict(run: RecordedRun) -> str:
    """Return a run's outcome: how it ended, whom it serves, who took part."""
    who = f"{run.settings['strategy']} on {run.task}, seed {run.seed}"
    total = int(run.settings["rounds"])
    if run.early_end:
        ended = f"ended early, in round {run.last_round} of {total}: {run.early_end}"
    elif run.finished:
        ended = f"finished its {plural(total, 'round')}"
    else:
        ended = f"has run {run.last_round} of {total} rounds"
    return " ".join([f"{who}, {ended}.", *_outcome_lines(run), _took_part(run)])


def _outcome_lines(run: RecordedRun) -> list[str]:
    line = next((line for line in reversed(run.lines) if line.get(run.metric.column) is not None), None)
    if line is None:
        return ["No model was evaluated."]
    figures = []
    for column in shown_in(HEADLINE, run.metric):
        if (value := line.get(column.key)) is None:
            continue
        if column.unit == SHARE:
            figures.append(f"a {column.title} of {float(value):.2f}")
        else:
            unit = " %" if column.unit == PERCENT else ""
            figures.append(f"a test {column.title.replace('-', ' ')} of {column.scale * float(value):.3g}{unit}")
    evaluated = plural(int(line.get("evaluated", 0)), "client")
    return [f"After round {int(line['round'])} the model has {' and '.join(figures)} over {evaluated}."]


def _took_part(run: RecordedRun) -> str:
    totals = Snapshot(rounds=run.lines).totals
    words = {"sat_out": "were declined", "absent": "had no reply in time", "failed": "failed"}
    others = [f"{totals[key]:,} {what}" for key, what in words.items() if totals[key]]
    others += [f"{totals['left']:,} ended in leaving for good" if totals["left"] else "no client left"]
    served = next((float(line["served"]) for line in reversed(run.lines) if line.get("served") is not None), None)
    text = f"Of {totals['asked']:,} requests to train {totals['joined']:,} were joined; {', '.join(others)}."
    if served is not None:
        text += f" The last model serves {100 * served:.0f} % of the clients as well as their own."
    return text


def comparison_verdict(comparison: Comparison) -> list[str]:
    """Return a sentence for each other group: where it beats the baseline or not."""
    keys = ["joined", *(column.key for column in shown_in(HEADLINE, comparison.metric))]
    measures = [measure for measure in comparison.measures if measure.key in keys]
    baseline, sentences = comparison.baseline, []
    for group in (group for group in comparison.groups if group != baseline):
        parts = [_against(comparison.of(group, measure), measure) for measure in measures]
        sentences.append(f"{group.label} against {baseline.label}: {'; '.join(parts)}.")
    return sentences


def _against(result: Result | None, measure: Measure) -> str:
    if result is None or result.difference is None:
        return f"{measure.title} not comparable"
    interval = result.difference.interval
    by = interval_text(interval, measure, "+")
    if not result.difference.verdict:
        return f"{measure.title} {by} ({'one seed: ' if interval.n == 1 else ''}no interval)"
    return f"{measure.title} {result.difference.verdict} ({by}, {plural(interval.n, 'seed')})"
