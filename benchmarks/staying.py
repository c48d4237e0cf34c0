"""Who stays: the runs behind the tables of docs/staying.md, over seeds that took no part in the search for defaults.

``python -m benchmarks.staying FILE`` adds the runs that a file of runs (docs/staying.jsonl) lacks: what clients use
of the shared model, against both opponents, and where goodwill is scarce. ``--seeds 11-13`` and ``--only TEXT``
choose among them.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.runner import design_of

Settings = Mapping[str, Any]

SEEDS = range(21, 31)
_DESIGN = design_of(__file__)


def planned_runs(seeds: range) -> Iterator[dict[str, Any]]:
    """Yield table, arm and settings of all runs, seed by seed."""
    every_arm = product(("maxfl", "fedavg"), _DESIGN["opponents"].items(), _DESIGN["tasks"].items())
    for seed, (strategy, (opponent, efforts), (task, shared)) in product(seeds, every_arm):
        for use, uses in {**_DESIGN["uses"], **_DESIGN["uses_of"].get(task, {})}.items():
            settings = {"task": task, "judge_on": "cross-fitted", **shared, **uses, "strategy": strategy}
            settings |= {"set": {**shared.get("set", {}), **efforts}, "rounds": 60, "seed": seed}
            yield {"table": f"{task}-opponents", "arm": f"{strategy}-{use}-{opponent}", "settings": settings}
    for seed, (what, goodwill), strategy in product(
        seeds, _DESIGN["goodwill"].items(), ("fedavg", "fedadam", "maxfl")
    ):
        settings = {**_DESIGN["scarce"], **goodwill, "strategy": strategy, "rounds": 50, "seed": seed}
        yield {"table": "scarce-goodwill", "arm": f"{strategy}-{what}", "settings": settings}


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
    parser.add_argument("--only", default="", help="texts, by semicolons; runs whose 'TABLE ARM' holds one of them")
    chosen = parser.parse_args()
    first, last = map(int, chosen.seeds.split("-"))
    there = [json.loads(line) for line in chosen.file.read_text("utf-8").splitlines()] if chosen.file.exists() else []
    done = {(run["table"], run["arm"], run["settings"]["seed"]) for run in there if "settings" in run}
    for run in planned_runs(range(first, last + 1)):
        key = (run["table"], run["arm"], run["settings"]["seed"])
        if key in done or not any(text in f"{run['table']} {run['arm']}" for text in chosen.only.split(";")):
            continue
        line = json.dumps(run | run_figures(run["settings"]))
        with chosen.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
