"""Run folders written by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedappeal.record.lines import HISTORY
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig

BASIS = {"joined": 1, "asked": 2, "left": 0, "failed": 0, "bytes_up": 500_000, "bytes_down": 1_000_000}


def a_run(path: Path, lines: Sequence[Mapping[str, float]], **settings: object) -> Path:
    """Write a run whose rounds are these lines, and whose settings ask for as many; return its folder."""
    folder = RunPlan.of(
        RunConfig.parse({"rounds": max(1, len(lines)), "mandatory-rounds": 0} | settings), path
    ).folder({})
    folder.append(HISTORY, *({**BASIS, "round": n + 1, "seconds": 0.5, **line} for n, line in enumerate(lines)))
    return path


def a_sweep(path: Path, values: Mapping[str, Sequence[float]], key: str = "accuracy", **settings: object) -> Path:
    """Write a run of one round for each strategy and seed, with these values; return the folder of all."""
    for strategy, numbers in values.items():
        for seed, value in enumerate(numbers):
            name = f"seed-{seed}-strategy-{strategy}"
            a_run(path / name, [{key: value}], strategy=strategy, seed=seed, **settings)
    return path
