"""The measured tables of docs/benchmarks.md, of the committed figures: ``python -m tests.docs.speed_tables``."""

import json
from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.docs.pages import DOCS

MEASURED: dict[str, Any] = json.loads((DOCS / "benchmarks.json").read_text())
SIMULATION = {
    "simulation/mlp": "MLP, 5 of 100 clients train",
    "simulation/mlp-evaluated": "the same, all 100 are evaluated",
    "simulation/cnn": "CNN, 5 of 100 train",
    "simulation/logistic": "logistic regression, 60 train 5 epochs",
}
SIDES = {
    "batched": "ours, batched",
    "sequential": "ours, sequential",
    "plain-loop": "plain PyTorch loop",
    "pfl-research": "pfl-research",
    "fluke": "fluke",
}
EVALUATION = {
    "evaluation/papers": "papers' settings",
    "evaluation/held-out": "held out, as sent",
    "evaluation/default": "default",
}
LOOPS = {
    "batched": "ours, batched",
    "plain-loop": "plain PyTorch loop",
    "papers-loop": "papers' loop",
}
CPU = "CPU s"
AIMS = {
    "over the papers' loop: papers' settings, held out, default": (
        (0.67, "evaluation/papers", "batched", "plain-loop", CPU),
        (0.57, "evaluation/held-out", "batched", "papers-loop", CPU),
        (1.1, "evaluation/default", "batched", "papers-loop", CPU),
    ),
    "1,000 clients over 250: papers' settings, default": (
        (1.5, "many-clients/papers", "1000-clients", "250-clients", CPU),
        (3.0, "many-clients/default", "1000-clients", "250-clients", CPU),
    ),
}
"""By what is compared: the most that each ratio may be; and its row, arm, reference and figure."""
FASTER = 2.5


def figures(row: str, arm: str, key: str) -> list[float]:
    """A figure of each repetition; empty where the arm was not measured."""
    return [run[key] for run in MEASURED["rows"].get(row, {}).get(arm, ())]


def ratio(row: str, arm: str, over: str, key: str) -> float:
    """The median of the ratios of a row's repetitions."""
    return median(a / b for a, b in zip(figures(row, arm, key), figures(row, over, key), strict=False))


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def milliseconds(rows: dict[str, str], arms: dict[str, str], heading: str, over: str, key: str) -> Iterator[str]:
    """A table's lines, its heading first: of each arm and row the median, and its ratio to a reference."""
    yield f"| {heading} | {' | '.join(rows.values())} |"
    yield "|---" * (1 + len(rows)) + "|"
    for arm, title in arms.items():
        cells = []
        for row in rows:
            measured = figures(row, arm, key)
            cells.append(f"{_short(1000 * median(measured))} ({ratio(row, arm, over, key):.2f})" if measured else "")
        yield f"| {title} | {' | '.join(cells)} |"


def simulation_rows() -> list[str]:
    """Whole rounds of all packages."""
    return [*milliseconds(SIMULATION, SIDES, "ms a round (over ours)", "batched", "s")]


def evaluation_rows() -> list[str]:
    """Rounds in which all clients of MaxFL evaluate."""
    heading = "CPU ms a round (over a loop that does the same)"
    return [*milliseconds(EVALUATION, LOOPS, heading, "plain-loop", CPU)]


def aims() -> Iterator[tuple[str, str, str, bool]]:
    """Of each line what it is about, what was aimed at and reached, and whether all of it was."""
    for what, parts in AIMS.items():
        reached = [round(ratio(*measured), 2) for _, *measured in parts]
        most = [part[0] for part in parts]
        met = all(one <= limit for one, limit in zip(reached, most, strict=True))
        yield what, ", ".join(f"{limit:g}" for limit in most), ", ".join(f"{one:.2f}" for one in reached), met
    yield "two workers over one process: papers' settings, default", "0.6, 0.55", *_of_workers()
    times = MEASURED["side by side"]
    what = f"a loop over ten MLP clients side by side: {', '.join(times)}"
    yield what, f"{FASTER:g}", ", ".join(f"{one:.2f}" for one in times.values()), min(times.values()) >= FASTER


def _of_workers() -> tuple[str, bool]:
    reached = MEASURED["workers"]
    return ", ".join(f"{one:.2f}" for one in reached), reached[0] <= 0.6 and reached[1] <= 0.55


if __name__ == "__main__":
    print("\n".join([*simulation_rows(), "", *evaluation_rows(), "", *(" | ".join(aim[:3]) for aim in aims())]))
