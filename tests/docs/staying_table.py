"""The table of docs/staying.md, of the committed runs: ``python -m tests.docs.staying_table`` prints it."""

import json
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from benchmarks.staying import SEEDS
from fedappeal.studies.plan import slug
from fedappeal.views.comparison.statistics import Interval
from tests.docs.pages import DOCS

RUNS: list[dict[str, Any]] = [json.loads(line) for line in (DOCS / "staying.jsonl").read_text().splitlines()]
TASKS = {
    "fmnist": "Fashion-MNIST, 20",
    "digits": "digits, 10",
    "movielens": "MovieLens, 20",
    "chem97": "Chem97, 20",
    "debian": "Debian, 20",
}
STRATEGIES = {"maxfl": "MaxFL", "fedavg": "FedAvg"}
USES = ("as sent", "own steps", "own steps, biases not shared", "best")
CONTROLS = {"best, nothing shared": "nothing shared", "best, nothing shared, all train": "all train"}
NONE = "–"
HEADER = """\
|task, clients|strategy|used|100 steps: joined|served|equal: joined|served|below|accuracy|CPU-s|
|---|---|---|---|---|---|---|---|---|---|"""


def runs_of(table: str, arm: str) -> list[dict[str, Any]]:
    """An arm's runs by seed, found by its title; none where it was not measured with all seeds."""
    runs = [run for run in RUNS if (run["table"], run["arm"]) == (slug(table), slug(arm))]
    runs.sort(key=lambda run: run["settings"]["seed"])
    return runs if [run["settings"]["seed"] for run in runs] == list(SEEDS) else []


def percent(runs: list[dict[str, Any]], key: str, digits: int = 0) -> str:
    """The mean over seeds, in per cent."""
    return f"{100 * fmean(run[key] for run in runs):.{digits}f}" if runs else NONE


def joined(runs: list[dict[str, Any]]) -> str:
    """The mean of the share that joins of its own accord, and its 95 % interval, in per cent."""
    if not runs or any(run["settings"].get("participation") == "always" for run in runs):
        return NONE
    free = [run["willing"] for run in runs if run["willing"] is not None]
    interval = Interval.of(free, is_share=True)
    text = f"{100 * interval.mean:.0f}"
    if interval.low is not None and interval.high is not None:
        text += f" [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"
    return text if len(free) == len(runs) else f"{text} ({len(free)} of {len(runs)})"


def staying_rows() -> Iterator[str]:
    """The table's lines, its heading first."""
    yield from HEADER.splitlines()
    for task, title in TASKS.items():
        for strategy, name in STRATEGIES.items():
            for use in (*USES, *(CONTROLS if strategy == "maxfl" else ())):
                few, equal = (
                    runs_of(f"{task}, opponents", f"{strategy}, {use}, {effort} steps") for effort in ("100", "equal")
                )
                if few or equal:
                    used = [{**run, "used": run["score"] if run["used"] is None else run["used"]} for run in equal]
                    cpu = f"{fmean(run['cpu'] for run in equal):.0f}" if equal else NONE
                    cells = (joined(few), percent(few, "served"), joined(equal), percent(equal, "served"))
                    cells += (percent(equal, "below"), percent(used, "used", 1), cpu)
                    yield f"|{'|'.join((title, name, CONTROLS.get(use, use), *cells))}|"


if __name__ == "__main__":
    print("\n".join(staying_rows()))
