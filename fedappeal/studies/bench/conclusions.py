"""What a benchmark's numbers say: each strategy against FedAvg, paired by seed, and sentences made of that."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fedappeal.studies.bench.design import BASELINE, Cell
from fedappeal.studies.bench.results import BenchResults
from fedappeal.studies.table import Spread
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.statistics import CONFIDENCE, Difference
from fedappeal.views.comparison.table import NONE, Table, plain_number

HEADLINES = {"kept": "clients that join at the end", "gm-appeal": "GM-Appeal", "score": "the metric"}
"""Measures of which sentences are made, with their names in them."""


@dataclass(frozen=True)
class Compared:
    """One measure of one row against the baseline's row of the same task and behaviour.

    Attributes:
        cell: the row.
        measure: the measure.
        difference: row less baseline.
    """

    cell: Cell
    measure: Measure
    difference: Difference

    def __str__(self) -> str:
        mean, half = self.difference.interval.mean, self.difference.interval.half
        digits = self.measure.digits
        within = "" if half is None else f" ({mean - half:+.{digits}f} to {mean + half:+.{digits}f})"
        return f"{plain_number(mean, digits, '+')}{within}"


def compared(results: BenchResults, keys: Collection[str]) -> list[Compared]:
    """Return all differences from the baseline, but its own, where every seed has both numbers.

    Args:
        results: what came out.
        keys: of the measures; empty: all.
    """
    contrasts = []
    for cell in results.cells():
        if cell.strategy == BASELINE:
            continue
        base = Cell(cell.task, cell.behaviour, BASELINE)
        for measure in results.measures_of(cell.task):
            if keys and measure.key not in keys:
                continue
            row, other = results.numbers(cell, measure.key), results.numbers(base, measure.key)
            # Seeds that got there, or did not diverge, would speak for those that have no number.
            if min(len(row), len(other)) < results.seeds:
                continue
            if difference := Difference.of(row, other, measure.better):
                contrasts.append(Compared(cell, measure, difference))
    return contrasts


def conclusions(results: BenchResults) -> list[str]:
    """Return a sentence for each behaviour and headline: which strategies are ahead of FedAvg, and which behind."""
    sentences = []
    everything = compared(results, HEADLINES)
    for behaviour in dict.fromkeys(cell.behaviour for cell in results.cells()):
        for key in HEADLINES:
            here = [
                contrast
                for contrast in everything
                if contrast.cell.behaviour == behaviour and contrast.measure.key == key
            ]
            if not here:
                continue
            tasks = dict.fromkeys(cell.task for cell in results.cells() if cell.behaviour == behaviour)
            level = sum(contrast.difference.verdict == "level" for contrast in here)
            said = [f"FedAvg itself {_itself(results, behaviour, key, tasks)}"]
            said += [f"ahead of FedAvg: {_named(here, 'better') or 'none'}"]
            said += [f"behind: {_named(here, 'worse') or 'none'}"]
            said += [f"{level} of {len(here)} differences are level"]
            sentences.append(f"**{behaviour}**, {HEADLINES[key]}: {'; '.join(said)}.")
    return sentences


def _itself(results: BenchResults, behaviour: str, key: str, tasks: Iterable[str]) -> str:
    """Return the baseline's numbers on these tasks: mean and sample standard deviation."""
    said = []
    for task in tasks:
        numbers = list(results.numbers(Cell(task, behaviour, BASELINE), key).values())
        digits = next(measure.digits for measure in results.measures_of(task) if measure.key == key)
        said.append(f"{Spread.shown(numbers, len(numbers), digits)} on {task}")
    return ", ".join(said)


def tally(results: BenchResults) -> Table:
    """Return how often each strategy is ahead of FedAvg, level and behind, over all tasks and behaviours."""
    everything = compared(results, HEADLINES)
    rows = []
    for strategy in dict.fromkeys(contrast.cell.strategy for contrast in everything):
        line = [strategy]
        for key in HEADLINES:
            here = [
                contrast
                for contrast in everything
                if contrast.cell.strategy == strategy and contrast.measure.key == key
            ]
            counts = Counter(contrast.difference.verdict for contrast in here)
            line.append(
                " / ".join(str(counts[verdict]) for verdict in ("better", "level", "worse")) if here else NONE
            )
        rows.append(tuple(line))
    return Table("ahead of FedAvg / level / behind", ("", *HEADLINES.values()), tuple(rows))


def chance(results: BenchResults) -> str:
    """Return how many verdicts chance alone would give."""
    differences = [contrast.difference for contrast in compared(results, HEADLINES)]
    # A strategy that is FedAvg here, or clients that always join: no chance is at work.
    count = sum(
        difference.verdict != "" and (difference.interval.mean, difference.interval.half) != (0.0, 0.0)
        for difference in differences
    )
    expected = (1 - CONFIDENCE) * count
    return (
        f"{count} differences that are not exactly 0 were judged one by one at {100 * CONFIDENCE:.0f} %, without a "
        f"correction for their number: where no strategy differed from FedAvg at all, about {expected:.0f} of them "
        "would still be called ahead or behind."
    )


def _named(contrasts: Iterable[Compared], verdict: str) -> str:
    """Return the strategies with a verdict: by how much, and on which task."""
    by_strategy: dict[str, list[str]] = {}
    for contrast in contrasts:
        if contrast.difference.verdict == verdict:
            by = plain_number(contrast.difference.interval.mean, contrast.measure.digits, "+")
            by_strategy.setdefault(contrast.cell.strategy, []).append(f"{by} on {contrast.cell.task}")
    return ", ".join(f"{name} ({', '.join(by)})" for name, by in by_strategy.items())
