"""What came out of runs, in a few plain sentences."""

from fedappeal.record.columns import HEADLINE, PERCENT, SHARE, shown_in
from fedappeal.record.snapshot import Snapshot
from fedappeal.system.plural import counted
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.result import Comparison, Result
from fedappeal.views.comparison.runs import RecordedRun
from fedappeal.views.comparison.table import plain_number


def run_verdict(run: RecordedRun) -> str:
    """Return what came out of one run: how it ended, whom its model serves, who took part."""
    who = f"{run.settings['strategy']} on {run.task}, seed {run.seed}"
    total = int(run.settings["rounds"])
    if run.early_end:
        ended = f"ended early, in round {run.last_round} of {total}: {run.early_end}"
    elif run.finished:
        ended = f"finished its {counted(total, 'round')}"
    else:
        ended = f"has run {run.last_round} of {total} rounds"
    return " ".join([f"{who}, {ended}.", *_rated(run), _took_part(run)])


def _rated(run: RecordedRun) -> list[str]:
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
    evaluated = counted(int(line.get("evaluated", 0)), "client")
    return [f"After round {int(line['round'])} the model has {' and '.join(figures)} over {evaluated}."]


def _took_part(run: RecordedRun) -> str:
    totals = Snapshot(rounds=run.lines).totals
    asked, joined, sat_out, left, failed = (totals[key] for key in ("asked", "joined", "sat_out", "left", "failed"))
    others = [f"{sat_out:,} were declined"] if sat_out else []
    others += [f"{failed:,} failed"] if failed else []
    others += [f"{counted(left, 'client')} left for good" if left else "no client left"]
    served = next((float(line["served"]) for line in reversed(run.lines) if line.get("served") is not None), None)
    told = (
        "" if served is None else f" The last model serves {100 * served:.0f} % of the clients as well as their own."
    )
    return f"Of {asked:,} requests to train {joined:,} were joined; {', '.join(others)}.{told}"


def comparison_verdict(found: Comparison) -> list[str]:
    """Return a sentence for each group other than the baseline: in which measures it is better or worse."""
    keys = ["joined", *(column.key for column in shown_in(HEADLINE, found.metric))]
    measures = [measure for measure in found.measures if measure.key in keys]
    return [
        f"{group.name} against {found.baseline.name}: {'; '.join(_against(found.of(group, m), m) for m in measures)}."
        for group in found.groups
        if group != found.baseline
    ]


def _against(result: Result | None, measure: Measure) -> str:
    if result is None or result.difference is None:
        return f"{measure.title} not comparable"
    scale, interval = measure.scale, result.difference.interval
    by = plain_number(scale * interval.mean, measure.digits, "+")
    if interval.half is None:
        return f"{measure.title} {by} (one seed: no interval)"
    half = plain_number(scale * interval.half, measure.digits)
    return f"{measure.title} {result.difference.verdict} ({by} ± {half}, {counted(interval.n, 'seed')})"
