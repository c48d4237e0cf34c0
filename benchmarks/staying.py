"""Who stays by default: the tables of docs/staying.md, over seeds that took no part in the search for defaults."""

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.runner import BenchRow, Figures, design_of, small

Settings = Mapping[str, Any]

SEEDS = range(21, 31)
_DESIGN = design_of(__file__)
SCARCE_ARMS: Mapping[str, Settings] = {
    f"{strategy}, {what}": {**_DESIGN["scarce"], "strategy": strategy, **goodwill}
    for what, goodwill in _DESIGN["goodwill"].items()
    for strategy in ("fedavg", "fedadam", "maxfl")
}


def staying_figures(settings: Settings, rounds: int) -> Figures:
    """Simulate a run for each seed; return the means, shares in per cent.

    With the 95 % interval of the share of clients that stayed.
    """
    import fedappeal
    from fedappeal.views.comparison.statistics import Interval
    from fedappeal.views.comparison.stayed import WhoStayed

    seeds = SEEDS[: 2 if small() else None]
    with TemporaryDirectory() as out:
        runs = fedappeal.sweep(**settings, seed=seeds, rounds=rounds, threads=1, out=f"{out}/runs", quiet=True)
        every = [WhoStayed.of(run.path) for run in runs]
    willing = [who.willing for who in every if who.willing is not None]
    interval = Interval.of(willing, is_share=True)
    means = {"stayed %": 100 * interval.mean, "seeds under 20 %": sum(share < 0.2 for share in willing)}
    if interval.low is not None and interval.high is not None:
        means |= {"from %": 100 * interval.low, "to %": 100 * interval.high}
    for title, key in (("served %", "served"), ("as sent %", "score"), ("as used %", "used")):
        if values := [getattr(who, key) for who in every if getattr(who, key) is not None]:
            means[title] = 100 * fmean(values)
    return {**means, "asked rounds": fmean(who.asked for who in every)}


ROWS = {
    "staying/scarce": BenchRow(
        {arm: partial(staying_figures, settings) for arm, settings in SCARCE_ARMS.items()}, rounds=50, repetitions=1
    ),
    **{
        f"staying/{task}": BenchRow(
            {
                arm: partial(staying_figures, {"task": task, **shared, **settings})
                for arm, settings in _DESIGN["arms"].items()
            },
            rounds=60,
            repetitions=1,
        )
        for task, shared in _DESIGN["tasks"].items()
    },
}
