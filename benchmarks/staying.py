"""Who stays by default: the tables of docs/staying.md, over seeds that took no part in the search for defaults.

``python -m benchmarks.staying FILE`` adds the runs that a file of runs (docs/staying.jsonl) lacks: what clients use
of the shared model, against both opponents. ``--seeds 11-13`` and ``--only TEXT`` choose among them.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
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
    if rounds <= (mandatory := settings.get("mandatory_rounds", 0)):  # a trial: one round is left to the clients
        settings = {**settings, "mandatory_rounds": min(mandatory, rounds - 1)}
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


def opponent_runs(seeds: range) -> Iterator[dict[str, Any]]:
    """Yield table, arm and settings of the runs of all uses against all opponents, seed by seed."""
    for seed in seeds:
        for strategy in ("maxfl", "fedavg"):
            for use, uses in _DESIGN["uses"].items():
                for opponent, efforts in _DESIGN["opponents"].items():
                    for task, shared in _DESIGN["tasks"].items():
                        settings = {"task": task, "judge_on": "cross-fitted", **shared, **uses, "strategy": strategy}
                        settings |= {"set": {**shared.get("set", {}), **efforts}, "rounds": 60, "seed": seed}
                        yield {
                            "table": f"{task}, opponents",
                            "arm": f"{strategy}, {use}, {opponent}",
                            "settings": settings,
                        }


def run_figures(settings: Settings) -> dict[str, Any]:
    """Simulate one run; return who stayed, who is served, and the CPU seconds that it took."""
    import fedappeal
    from fedappeal.record.reader import Record
    from fedappeal.system.versions import recorded_versions
    from fedappeal.views.comparison.stayed import WhoStayed

    used = time.process_time()
    with TemporaryDirectory() as out:
        run = fedappeal.simulate(**settings, threads=1, out=f"{out}/run", quiet=True)
        who, last = WhoStayed.of(run.path), Record(run.path).history[-1]
    figures = {key: getattr(who, key) for key in ("willing", "served", "score", "used", "asked")}
    figures |= {"below": last["gm_appeal"], "cpu": time.process_time() - used}
    return {**figures, "versions": recorded_versions()}


def main() -> None:
    """Add the runs that a file lacks, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", default=f"{SEEDS[0]}-{SEEDS[-1]}", help="first and last")
    parser.add_argument("--only", default="", help="texts, by semicolons; runs whose table and arm hold one of them")
    chosen = parser.parse_args()
    first, last = map(int, chosen.seeds.split("-"))
    there = [json.loads(line) for line in chosen.file.read_text("utf-8").splitlines()] if chosen.file.exists() else []
    done = {(run["table"], run["arm"], run["settings"]["seed"]) for run in there if "settings" in run}
    for run in opponent_runs(range(first, last + 1)):
        key = (run["table"], run["arm"], run["settings"]["seed"])
        if key in done or not any(text in f"{run['table']}, {run['arm']}" for text in chosen.only.split(";")):
            continue
        line = json.dumps(run | run_figures(run["settings"]))
        with chosen.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


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

if __name__ == "__main__":
    main()
