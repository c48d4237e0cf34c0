"""An experiment's results as tables: ours as mean and spread over seeds, the paper's number, the difference."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from fedappeal.record.reader import Record
from fedappeal.studies.experiment import Arm, Number, Results
from fedappeal.studies.results import row_of
from fedappeal.studies.verdict import Verdict
from fedappeal.system.wording import counted
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.table import NONE, Table, plain_number
from strategies.rounds.sums.last_good import DIVERGED

_COUNTS = (1, 3, 5, 10, 20, 50)
"""Numbers of seeds that are compared, and all of them."""
_FEWEST = 3
"""Seeds of which it can be said what their number changes."""


@dataclass(frozen=True)
class Spread:
    """Numbers of several seeds.

    Attributes:
        mean: their mean.
        deviation: their sample standard deviation (over n - 1); None for a single one.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return mean and deviation of at least one number."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)

    @classmethod
    def printed(cls, number: Number) -> "Spread":
        """Return a number of the paper."""
        return cls(*number) if isinstance(number, tuple) else cls(number, None)

    @classmethod
    def shown(cls, values: Sequence[float], runs: int, digits: int) -> str:
        """Return numbers as ``mean ± deviation``, and of how many of the runs they are where not of all."""
        if not values:
            return NONE
        return cls.of(values).show(digits) + (f" ({len(values)} of {runs})" if len(values) < runs else "")

    def decimals(self) -> int:
        """Return how many digits after the point they are written with."""
        values = (value for value in (self.mean, self.deviation) if value is not None)
        return max(len(str(value).partition(".")[2]) for value in values)

    def show(self, digits: int) -> str:
        """Return it as ``mean ± deviation``."""
        tail = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{plain_number(self.mean, digits)}{tail}"


def result_tables(results: Results, arms: Sequence[Arm]) -> list[Table]:
    """Return a table for each measure with numbers of the paper, and one for the other measures.

    Args:
        results: the finished runs.
        arms: the rows; those without a finished run are shown with the paper's number alone.
    """
    measures = results.experiment.measures
    printed = [m for m in measures if any(m.key in arm.paper for arm in arms)]
    beside = {m.key: [other for other in measures if other.beside == m.key] for m in printed}
    placed = {m.key for m in printed} | {m.key for others in beside.values() for m in others}
    tables = [_against_paper(results, arms, measure, beside[measure.key]) for measure in printed]
    if rest := [m for m in measures if m.key not in placed]:
        header = ("", *(m.title for m in rest))
        cells = [(arm.group, (arm.shown, *(_ours(results, arm, m) for m in rest))) for arm in arms]
        title = "Further measures" if printed else results.experiment.title
        tables.append(Table(title, header, _grouped(cells)))
    return tables


def _against_paper(results: Results, arms: Sequence[Arm], measure: Measure, beside: Sequence[Measure]) -> Table:
    header = ["", "ours", "paper", "difference"]
    for other in beside:
        header += [f"ours, {other.column}", "difference"]
    rows = []
    for arm in arms:
        paper = Spread.printed(arm.paper[measure.key]) if measure.key in arm.paper else None
        cells = [
            _ours(results, arm, measure),
            _papers(arm, measure),
            _difference(results, arm, measure, paper),
        ]
        for other in beside:
            cells += [_ours(results, arm, other), _difference(results, arm, other, paper)]
        rows.append((arm.group, (arm.shown, *cells)))
    return Table(measure.title, tuple(header), _grouped(rows))


def _ours(results: Results, arm: Arm, measure: Measure) -> str:
    return Spread.shown(results.numbers(arm.name, measure), len(results.of(arm.name)), measure.digits)


def _papers(arm: Arm, measure: Measure) -> str:
    if measure.key not in arm.paper:
        return NONE
    paper = Spread.printed(arm.paper[measure.key])
    return paper.show(max(measure.digits, paper.decimals()))


def _difference(results: Results, arm: Arm, measure: Measure, paper: Spread | None) -> str:
    values = results.numbers(arm.name, measure)
    if not values or paper is None:
        return NONE
    return plain_number(Spread.of(values).mean - paper.mean, measure.digits, "+")


def _grouped(rows: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    """Put the rows of a group together under its name, groups in the order of their first rows.

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


def nearness_table(results: Results, arms: Sequence[Arm]) -> Table | None:
    """Return each group's distance from the paper: the mean size of its rows' differences, by measure.

    Only rows that all these groups have are counted, and none twice: else groups would be compared by different rows.
    None where no two groups have such a row.
    """
    cells: dict[str, list[str]] = {}
    shown: list[Measure] = []
    for measure in results.experiment.measures:
        gaps = _gaps(results, arms, measure)
        common = set.intersection(*map(set, gaps.values())) if len(gaps) > 1 else set()
        common -= set(results.experiment.twins)
        if not common:
            continue
        for group, sizes in gaps.items():
            mean = fmean(sizes[row] for row in common)
            line = cells.setdefault(group, [NONE] * len(shown))
            line.append(f"{mean:.{measure.digits}f} ({counted(len(common), 'row')})")
        shown.append(measure)
        for line in cells.values():
            line += [NONE] * (len(shown) - len(line))
    title = "How near each reading comes to the paper: mean size of the differences, over the rows that all have"
    rows = tuple((group, *line) for group, line in cells.items())
    return Table(title, ("", *(m.title for m in shown)), rows) if rows else None


def _gaps(
    results: Results, arms: Sequence[Arm], measure: Measure, printed: Measure | None = None
) -> dict[str, dict[str, float]]:
    """Return the size of a measure's difference from the number of ``printed`` (or its own), by group and row."""
    key = (printed or measure).key
    gaps: dict[str, dict[str, float]] = {}
    for arm in arms:
        if key in arm.paper and (values := results.numbers(arm.name, measure)):
            gap = abs(fmean(values) - Spread.printed(arm.paper[key]).mean)
            gaps.setdefault(arm.group, {})[arm.shown] = gap
    return gaps


def seeds_table(results: Results, arms: Sequence[Arm]) -> Table | None:
    """Return the first group's numbers over the first 1, 3, 5, ... seeds.

    A measure that also has a mean over the last rounds is shown as that mean, which is less noisy. Under a measure's
    rows is the mean size of their differences from the paper. None where the paper has no numbers of these rows, or
    where fewer than `_FEWEST` seeds were run.
    """
    seeds = sorted({run.seed for run in results.runs})
    if len(seeds) < _FEWEST or not arms:
        return None
    counts = sorted({*(n for n in _COUNTS if n < len(seeds)), len(seeds)})
    parts = [_of_seeds(results, seeds[:n]) for n in counts]
    rows: list[tuple[str, tuple[str, ...]]] = []
    for printed in results.experiment.measures:
        shown = [arm for arm in arms if arm.group == arms[0].group and printed.key in arm.paper]
        measure = next((m for m in results.experiment.measures if m.beside == printed.key), printed)
        for arm in shown:
            ours = (_ours(part, arm, measure) for part in parts)
            rows.append((measure.title, (arm.shown, *ours, _papers(arm, printed))))
        gaps = [_gaps(part, shown, measure, printed).get(arms[0].group, {}) for part in parts]
        if common := set.intersection(*map(set, gaps)):
            sizes = (f"{fmean(part[row] for row in common):.{measure.digits}f}" for part in gaps)
            rows.append(
                (measure.title, (f"mean size of the differences ({counted(len(common), 'row')})", *sizes, NONE))
            )
    title = "What the number of seeds changes" + (", for the first group of rows" if arms[0].group else "")
    header = ("", *("1 seed" if n == 1 else f"the first {n} seeds" for n in counts), "paper")
    return Table(title, header, _grouped(rows)) if rows else None


def _of_seeds(results: Results, seeds: Sequence[int]) -> Results:
    return replace(results, runs=tuple(run for run in results.runs if run.seed in seeds))


def diverged_runs(results: Results) -> dict[str, tuple[str, str]]:
    """Return the last round, and the clients that could measure it, of runs that diverged.

    No client could train on such a run's model, or not all could measure its end.
    """
    diverged = {}
    for run in results.runs:
        end = run.lines[-1] if run.lines else {}
        if "round" not in end:
            continue  # computed, not trained
        measured, expected = end.get("evaluated", 0), end.get("expected", 0)
        if measured < expected or (Record(run.path).standing.end or {}).get("reason") == DIVERGED:
            diverged[f"{run.arm.name}, seed {run.seed}"] = (str(end["round"]), f"{measured} of {expected}")
    return diverged


def diverged_table(diverged: Mapping[str, tuple[str, str]], arms: Iterable[Arm]) -> Table | None:
    """Return the runs of `diverged_runs` as a table; None where there are none."""
    by_name = {arm.name: arm for arm in arms}
    title = "Runs that diverged; where fewer than half could measure the last model, the run is in no mean"
    rows = _grouped(
        (arm.group, (arm.shown + run.removeprefix(arm.name), *end))
        for run, end in diverged.items()
        if (arm := by_name.get(row_of(run)))
    )
    return Table(title, ("", "ended in round", "clients that could"), rows) if rows else None


def ranking_table(outcomes: Sequence[Verdict]) -> Table | None:
    """Return the groups in which the same rank is claimed, the one whose gap is nearest to the paper's first.

    None where no rank is claimed of two groups.
    """
    ranks: dict[str, list[tuple[float, Verdict]]] = {}
    for verdict in outcomes:
        if verdict.claim.among and verdict.paper is not None and (gap := verdict.gap):
            ranks.setdefault(verdict.claim.text, []).append((abs(gap.mean - verdict.paper), verdict))
    rows = [
        (text, (verdict.claim.group, verdict.words()))
        for text, readings in ranks.items()
        if len(readings) > 1
        for _, verdict in sorted(readings, key=lambda reading: reading[0])
    ]
    title = "Readings by their gap, the nearest to the paper's first"
    return Table(title, ("", "here"), _grouped(rows)) if rows else None


def claims_table(outcomes: Sequence[Verdict]) -> Table | None:
    """Return the paper's claims and what came out of each; None where nothing could be checked."""
    rows = _grouped((verdict.claim.group, (verdict.claim.text, verdict.words())) for verdict in outcomes)
    return Table("What is claimed, and what came out", ("", "here"), rows) if rows else None
