"""A comparison as tables of texts: means by group, and differences from the baseline."""

from collections.abc import Sequence

from fedappeal.views.comparison.groups import Group
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.result import Comparison, Result
from fedappeal.views.comparison.statistics import Difference, Interval
from fedappeal.views.comparison.table import NONE, Table, plain_number


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return tables of means and of differences, for each task: a column a group."""
    tables = []
    for found in comparisons:
        where = f" on {found.baseline.task}" if len(comparisons) > 1 else ""
        where += f", after round {found.after}" if found.after else ""
        tables.append(_means(found, where))
        if others := [group for group in found.groups if group != found.baseline]:
            tables.append(_differences(found, others, where))
    return tables


def _means(found: Comparison, where: str) -> Table:
    several = any(len(group.seeds) > 1 for group in found.groups)
    what = "mean ± 95 % interval over seeds" if several else "one seed, so no interval"
    rows = [
        (measure.title, *(_mean(found.of(group, measure), group) for group in found.groups))
        for measure in found.measures
    ]
    header, *settings = _settings(found.groups)
    seeds = ("seeds", *(_seeds(group) for group in found.groups))
    return Table(f"Results{where}: {what}", header, (*settings, seeds, *rows))


def _settings(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Return a row for each setting in which groups differ: its key, and each group's value."""
    keys = dict.fromkeys(key for group in groups for key, _ in group.settings)
    return [(key, *(dict(group.settings).get(key, NONE) for group in groups)) for key in keys]


def _seeds(group: Group) -> str:
    count = len(group.seeds)
    return str(count) if count > 1 else "1, no interval"


def _mean(result: Result | None, group: Group) -> str:
    if result is None:
        return NONE
    text = _interval(result.interval, result.measure)
    return text if result.interval.n == len(group.seeds) else f"{text} ({result.interval.n} of {len(group.seeds)})"


def _differences(found: Comparison, others: Sequence[Group], where: str) -> Table:
    rows = []
    for measure in found.measures:
        results = [found.of(group, measure) for group in others]
        rows.append((measure.title, *(_difference(r.difference, measure) if r else NONE for r in results)))
    title = f"Differences from {found.baseline.label}{where}, paired over seeds; k/n: better in k of n"
    header, *settings = _settings(others)
    return Table(title, header, (*settings, *rows))


def _difference(difference: Difference | None, measure: Measure) -> str:
    if difference is None:
        return NONE
    words = [_interval(difference.interval, measure, "+"), difference.verdict]
    if difference.wins is not None:
        words.append(f"{difference.wins}/{difference.interval.n}")
    return " ".join(filter(None, words))


def _interval(interval: Interval, measure: Measure, sign: str = "") -> str:
    half = "" if interval.half is None else f" ± {plain_number(measure.scale * interval.half, measure.digits)}"
    return plain_number(measure.scale * interval.mean, measure.digits, sign) + half
