"""The benchmark's page, from its results alone."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedappeal.studies.bench.conclusions import Compared, chance, compared, conclusions, tally
from fedappeal.studies.bench.design import BASELINE, Cell
from fedappeal.studies.bench.picture import FURTHER, places
from fedappeal.studies.bench.results import BenchResults
from fedappeal.studies.table import Spread
from fedappeal.system.files import replace_file
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.table import NONE, Table

PAGE = "README.md"
PICTURE = "overview"

_NOT_SAID = """\
- Clients are simulated: their policies are rules that the papers state, not people.
- Each strategy runs with the same local training on a task, but for ADA-GD and MaxFL+ADA-GD: their round is one
  gradient step, as long as the others' local steps together. Own settings are the papers' or this project's
  defaults, but for these: ADA-GD's precision is the loss at which clients leave (half of it where none does), its
  slack is 1, and it proceeds without clients that are missing; of FedALIGN half of the clients have priority, and
  epsilon is 0.2. None was tuned to the benchmark. A strategy that is level here may be ahead with other settings.
- All are judged by the global model. Per-FedAvg, pFedMe and Ditto train it for another use: a model of each
  client's own. Ditto's global model is FedAvg's, and so is FedNova's where clients take equally many local steps:
  they are level by construction there.
- Where no client joins, the model stays as it is, and clients that sat out sit out for good: with many strategies
  `appeal` ends so. MIFA alone moves the model in such a round.
- A run that ended early counts on as in its last round: the model stays, and so do the clients' decisions. Where
  that round was mandatory nothing is known of these. A difference is judged where every seed of both has a number.
- GM-Appeal is measured on test data, while clients decide by their training data.
- Tasks are small: a round takes a client some milliseconds. Nothing is said about large models.
- A client that is asked may decline at no cost here, but where a behaviour says otherwise.
"""


def tables(results: BenchResults, keys: Collection[str] = ()) -> list[Table]:
    """Return a table for each task and behaviour: measures, and their differences from FedAvg.

    Args:
        results: what came out.
        keys: of the measures; empty: all.
    """
    against = {(result.cell, result.measure.key): result for result in compared(results, keys)}
    shown = []
    for task, behaviour in dict.fromkeys((cell.task, cell.behaviour) for cell in results.cells()):
        rows = [cell for cell in results.cells() if (cell.task, cell.behaviour) == (task, behaviour)]
        measures = [measure for measure in results.measures_of(task) if not keys or measure.key in keys]
        title = f"{task}, {behaviour}: {results.titles()[behaviour]}"
        shown.append(_table(title, results, rows, measures, against))
    return shown


def _table(
    title: str,
    results: BenchResults,
    rows: Sequence[Cell],
    measures: Sequence[Measure],
    against: Mapping[tuple[Cell, str], Compared],
) -> Table:
    header = ["", *(part for measure in measures for part in (measure.title, "against FedAvg"))]
    cells = []
    for cell in rows:
        line, runs = [cell.strategy], len(results.cells()[cell].seeds)
        for measure in measures:
            other, numbers = against.get((cell, measure.key)), results.numbers(cell, measure.key)
            line.append(Spread.shown(list(numbers.values()), runs, measure.digits))
            line.append(f"{other} {other.difference.verdict}".strip() if other else NONE)
        cells.append(tuple(line))
    return Table(title, tuple(header), tuple(cells))


def write_page(results: BenchResults, folder: Path) -> Path:
    """Write the page beside its picture; return its path."""
    parts = ["# Who keeps its volunteers"]
    if results.quick:
        parts.append("**The short form (`--quick`): it shows that the benchmark runs, not what comes out of it.**")
    parts.append(
        "Every strategy on the same clients, which are free to sit out or to leave. Differences are paired by seed."
    )
    whole, further = places(results)
    if whole:
        parts.append(f"![Each strategy against FedAvg]({PICTURE}.png)")
    if further:
        parts.append(f"![Where few strategies were run]({PICTURE}{FURTHER}.png)")
    if whole:
        parts += [
            "Differences within noise are in brackets. Orange: more clients, or more appeal, than with FedAvg.",
            "How often each is ahead of FedAvg / level / behind, over tasks and behaviours:",
            tally(results).markdown(),
        ]
    parts += ["## What we conclude", "\n".join(f"- {line}" for line in conclusions(results)), chance(results)]
    parts += ["## What we do not", _NOT_SAID.strip(), "## Tasks and behaviours"]
    parts.append("\n".join(f"- **{name}**: {title}" for name, title in results.titles().items()))
    parts += [
        "## Results",
        f"Mean ± sample standard deviation over {results.seeds} seeds; differences with 95 % intervals.",
    ]
    for table in tables(results):
        parts += [f"### {table.title}", table.markdown()]
    if early := _ended_early(results):
        parts += ["## Runs that ended early", "\n".join(early)]
    if results.skipped:
        parts += ["## Not run here", "\n".join(f"- {row}: {reason}" for row, reason in results.skipped.items())]
    if results.failed:
        parts += ["## Failed runs", "\n".join(f"- {run}: {reason}" for run, reason in results.failed.items())]
    parts += ["## How it was made", f"```\n{results.command}\n```", _settings(results)]
    parts.append(
        ", ".join(f"{package} {', '.join(numbers)}" for package, numbers in sorted(results.versions.items()))
    )
    path = folder / PAGE
    replace_file(path, ("\n\n".join(parts) + "\n").encode())
    return path


def _ended_early(results: BenchResults) -> list[str]:
    """Return a line for each row with runs that ended before their last round: how many, and when."""
    lines = []
    for cell, row in results.cells().items():
        planned = int(results.settings[str(cell)]["rounds"])
        if early := [rounds for rounds in row.rounds if rounds < planned]:
            when = f"{min(early)}" if min(early) == max(early) else f"{min(early)} to {max(early)}"
            lines.append(f"- {cell}: {len(early)} of {len(row.seeds)}, after {when} of {planned} rounds")
    return lines


def _settings(results: BenchResults) -> str:
    """Return each row's settings, those of a task and behaviour's baseline first and then what differs."""
    lines = []
    for cell in results.cells():
        settings = results.settings[str(cell)]
        base = results.settings.get(str(Cell(cell.task, cell.behaviour, BASELINE)), {})
        shown = settings if cell.strategy == BASELINE else {k: v for k, v in settings.items() if base.get(k) != v}
        lines.append(f"- {cell}: `{json.dumps(shown)}`")
    return "<details><summary>Settings</summary>\n\n" + "\n".join(lines) + "\n\n</details>"
