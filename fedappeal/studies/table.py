"""An experiment's results as tables: ours as mean and spread over seeds beside the paper's, and its verdicts."""

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from fedappeal.record.reader import Record
from fedappeal.studies.experiment import Arm, Results, RunResult
from fedappeal.studies.verdict import Verdict
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.table import NONE, TextTable, plain_number
from strategies.rounds.sums.last_good import DIVERGED


def with_spread(values: Sequence[float], runs: int, digits: int) -> str:
    """Return ``mean ± deviation`` over seeds, and of how many runs if not all.

    The deviation is the sample's (over n - 1); a single number has none.
    """
    if not values:
        return NONE
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    some = f" ({len(values)} of {runs})" if len(values) < runs else ""
    return f"{plain_number(fmean(values), digits)}{deviation}{some}"


def numbers_table(results: Results, arms: Sequence[Arm]) -> TextTable:
    """Return the table of arms: our number, and the paper's in parentheses.

    For each measure; the paper's where it prints one.

    A measure that is also averaged over the last rounds is shown as that average, which is less noisy.

    Args:
        results: the finished runs.
        arms: the rows; those without a finished run are shown with the paper's number alone.
    """
    averaged = {measure.beside for measure in results.experiment.measures}
    measures = [measure for measure in results.experiment.measures if measure.key not in averaged]
    rows = [(arm.group, (arm.shown, *(_cell(results, arm, measure) for measure in measures))) for arm in arms]
    title = "Ours, mean ± deviation over seeds" + (" (the paper's)" if any(arm.paper for arm in arms) else "")
    return TextTable(title, ("", *(measure.title for measure in measures)), group_rows(rows))


def _cell(results: Results, arm: Arm, measure: Measure) -> str:
    ours = with_spread(results.numbers(arm.name, measure), len(results.of(arm.name)), measure.digits)
    value = arm.printed(measure)
    if value is None:
        return ours
    decimals = len(str(value).partition(".")[2])
    return f"{ours} ({plain_number(value, max(measure.digits, decimals))})"


def verdict_table(outcomes: Sequence[Verdict]) -> TextTable:
    """Return the table of claims: verdict, our margin and the paper's.

    Claims "row: column" that fill a table with several columns stand in it so.
    """
    cells = {v.claim.partition(": ")[::2]: v for v in outcomes}
    rows, columns = ({key[n]: None for key in cells} for n in (0, 1))
    if len(columns) > 1 and len(rows) * len(columns) == len(cells) == len(outcomes):
        lines = [(outcomes[0].group, (row, *(_outcome(cells[row, column]) for column in columns))) for row in rows]
        return TextTable(_CLAIMED, ("", *columns), group_rows(lines))
    listed = [
        (v.group, (v.claim + (" (ours)" if v.whose == "ours" else ""), v.words, v.here, v.papers or NONE))
        for v in outcomes
    ]
    return TextTable(_CLAIMED, ("", "verdict", "here", "paper"), group_rows(listed))


_CLAIMED = "What is claimed, and what came out"


def _outcome(verdict: Verdict) -> str:
    paper = f", paper {verdict.papers}" if verdict.papers else ""
    return f"{verdict.words}: {verdict.here}{paper}" + (" (ours)" if verdict.whose == "ours" else "")


def group_rows(rows: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    """Return rows with those of a group together under its name.

    Groups are in the order of their first rows.

    Rows without a group come first: under another group's name they would seem to be its own.

    Args:
        rows: the group and the cells of each.
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for group, cells in rows:
        groups.setdefault(group, []).append(cells)
    lines: list[tuple[str, ...]] = []
    for group, members in sorted(groups.items(), key=lambda item: item[0] != ""):
        lines += ([(group,)] if group else []) + members
    return tuple(lines)


def diverged_runs(runs: Iterable[RunResult]) -> dict[int, tuple[str, str]]:
    """Return by seed diverged runs' last round, and the clients that could measure it.

    No client could train on such a run's model, or not all could measure its end.
    """
    diverged = {}
    for run in runs:
        end = run.lines[-1] if run.lines else {}
        if "round" not in end:
            continue  # computed, not trained
        measured, expected = end.get("evaluated", 0), end.get("expected", 0)
        if measured < expected or (Record(run.path).standing.end or {}).get("reason") == DIVERGED:
            diverged[run.seed] = (str(end["round"]), f"{measured} of {expected}")
    return diverged
