"""What a comparison reads off every run: the task's primary metric, GM-Appeal, loss, participation, traffic."""

from collections.abc import Iterable

from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.views.comparison.measures import LATE, Lines, Measure, joined_share, last, late, total
from fedappeal.views.comparison.statistics import Better


def run_measures(metric: Metric = ACCURACY, averaged: bool = True) -> tuple[Measure, ...]:
    """Return the measures by which runs are compared; not every run has all.

    Args:
        metric: the task's primary metric.
        averaged: whether measures over the last `LATE` rounds are among them: runs of no more rounds need none.
    """
    found = [Measure("rounds", "rounds", last("round"), better="", digits=0)]
    for prefix, whose in (("", ""), ("unseen_", "unseen: ")):
        for key, title, better, share in _evaluated(metric):
            digits = 1 if share else 3
            name, heading = prefix + key, whose + title
            found.append(Measure(name, heading, last(name), share, better, digits))
            if averaged:
                title = f"{heading}, last {LATE} rounds"
                found.append(Measure(f"{name}-late", title, late(name), share, better, digits))
    joined = "joined, % of those asked"
    found.append(Measure("joined", joined, joined_share(), percent=True, digits=1))
    if averaged:
        title = f"{joined}, last {LATE} rounds"
        found.append(Measure("joined-late", title, joined_share(LATE), percent=True, digits=1))
    return (
        *found,
        Measure("left", "clients that left", total("left"), better="lower", digits=0),
        Measure("failed", "failed replies", total("failed"), better="lower", digits=0),
        Measure("up", "MB up", lambda lines: _megabytes(lines, "bytes_up"), better="lower", digits=2),
        Measure("down", "MB down", lambda lines: _megabytes(lines, "bytes_down"), better="lower", digits=2),
        Measure("seconds", "seconds in all", total("seconds"), better="lower", digits=1),
    )


def _evaluated(metric: Metric) -> Iterable[tuple[str, str, Better, bool]]:
    """Return column, heading, better direction and whether it is a share of what evaluation reports."""
    name, share, shown = metric.column, metric.is_share, metric.heading
    better: Better = "higher" if metric.higher_is_better else "lower"
    rows: tuple[tuple[str, str, Better, bool], ...] = (
        ("gm_appeal", "GM-Appeal", "higher", False),
        ("served", "served as well as alone, % of clients", "higher", True),
        (name, f"test {shown}", better, share),
        (f"worst_decile_{name}", f"worst decile's {shown}", better, share),
        (f"preferred_{name}", f"preferred-model {shown}", better, share),
        (f"adapted_{name}", f"adapted model's {shown}", better, share),
        ("loss", "test loss", "lower", False),
        ("adapted_loss", "adapted model's loss", "lower", False),
        (f"priority_{name}", f"priority clients' {shown}", better, share),
    )
    return {row[0]: row for row in rows}.values()  # a task's metric may be its loss


def _megabytes(lines: Lines, key: str) -> float | None:
    found = total(key)(lines)
    return None if found is None else found / 1e6
