"""The page of an experiment: tables, pictures, settings, seeds, versions; beside it the numbers as JSON."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedappeal.comparison.table import Table
from fedappeal.experiments.framework.experiment import Arm, Results
from fedappeal.experiments.framework.plan import Plan, folder_name
from fedappeal.experiments.framework.table import (
    claims_table,
    diverged_table,
    nearness_table,
    result_tables,
    seeds_table,
)
from fedappeal.files import replace_file

_TRIED = re.compile(r" \(tried: .*\)")
"""Errors of a download on this machine, which say nothing to a reader of the page."""

_SEPARATE = ("out", "resume", "schedule-rounds", "seed")
"""Settings that differ from run to run by nature."""


def page_stem(plan: Plan, folder: Path) -> Path:
    """Return the path of the page and its pictures, without an ending."""
    return folder / folder_name(plan.experiment.name, plan.quick)


def planned_arms(plan: Plan) -> list[Arm]:
    """Return the rows: the plan's arms, and arms with the paper's numbers that could not be run here."""
    planned = {run.arm.name for run in plan.runs}
    return [arm for arm in plan.experiment.arms if arm.name in planned or (arm.name in plan.skipped and arm.paper)]


def all_tables(plan: Plan, results: Results) -> list[Table]:
    """Return the tables that are printed and put on the page."""
    arms = planned_arms(plan)
    further = (
        diverged_table(results),
        nearness_table(results, arms),
        seeds_table(results, arms),
        claims_table(results),
    )
    return result_tables(results, arms) + [table for table in further if table]


def write_page(plan: Plan, results: Results, failed: Mapping[str, str], folder: Path) -> tuple[Path, str]:
    """Draw the figure and write the page and the numbers.

    Args:
        plan: what was planned.
        results: what came out.
        failed: the runs that failed, with their reasons.
        folder: where to.

    Returns:
        The page's path, and why the figure could not be drawn; empty where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem, trouble, drawn = page_stem(plan, folder), "", False
    if plan.experiment.figure and results.runs:
        try:
            plan.experiment.figure(results, stem)
            drawn = True
        except Exception as error:  # the numbers are there all the same
            trouble = " ".join(f"{type(error).__name__}: {error}".split())
    page = stem.with_name(stem.name + ".md")
    numbers = stem.with_name(stem.name + ".json")
    replace_file(numbers, (json.dumps(_numbers(plan, results), indent=1, allow_nan=False) + "\n").encode())
    replace_file(page, _markdown(plan, results, failed, stem.name, drawn).encode())
    return page, trouble


def command(plan: Plan) -> str:
    """Return the command that makes the page."""
    name, grid = plan.searched
    words = ["fedappeal", "reproduce", name or plan.experiment.name, *(["--quick"] if plan.quick else [])]
    words += ["--grid", grid] if grid else []
    words += ["--seeds", str(plan.seeds)]
    for key, value in plan.changed.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _numbers(plan: Plan, results: Results) -> dict[str, Any]:
    measures = plan.experiment.measures
    return {
        "experiment": plan.experiment.name,
        "source": plan.experiment.source,
        "command": command(plan),
        "measures": {m.key: m.title for m in measures},
        "arms": [
            {
                "name": arm.name,
                "group": arm.group,
                "paper": dict(arm.paper),
                "seeds": [run.seed for run in results.of(arm.name)],
                "ours": {m.key: [run.number(m) for run in results.of(arm.name)] for m in measures},
            }
            for arm in planned_arms(plan)
        ],
    }


def _markdown(plan: Plan, results: Results, failed: Mapping[str, str], name: str, drawn: bool) -> str:
    experiment = plan.experiment
    parts = [f"# {experiment.title}", f"{experiment.source}. {experiment.claim}"]
    if plan.quick:
        parts.append("**The short form (`--quick`): it shows that the experiment runs, not what comes out of it.**")
    parts.append(f"```\n{command(plan)}\n```")
    ours = f"mean ± sample standard deviation over {plan.seeds} seeds" if plan.seeds > 1 else "one seed"
    theirs = " Paper: as printed there." if any(arm.paper for arm in planned_arms(plan)) else ""
    parts.append(f"Ours: {ours}.{theirs}")
    for table in all_tables(plan, results):
        parts += [f"## {table.title}", table.markdown()]
    if drawn:
        parts += ["## Figure", f"![{experiment.title}]({name}.png)", f"([SVG]({name}.svg))"]
    if experiment.notes:
        parts += ["## Notes", experiment.notes.strip()]
    if plan.skipped:
        parts += ["## Not run here", "\n".join(f"- {_TRIED.sub('', line)}" for line in plan.skipped_lines())]
    if failed:
        parts += ["## Failed runs", "\n".join(f"- {run}: {reason}" for run, reason in failed.items())]
    parts += ["## Settings", *_settings(plan), "## Versions", *_versions(plan)]
    return "\n\n".join(parts) + "\n"


def _settings(plan: Plan) -> list[str]:
    """Return the settings that differ between rows, and the others.

    A row has the general settings and those of its own plug-ins, which are compared with the rows that have them.
    """
    by_arm = {run.arm.name: {k: v for k, v in run.settings.items() if k not in _SEPARATE} for run in plan.runs}
    found: dict[str, list[Any]] = {}
    for settings in by_arm.values():
        for key, value in settings.items():
            found.setdefault(key, []).append(value)
    keys = sorted(found)
    different = [
        key
        for key in keys
        if any(value != found[key][0] for value in found[key]) or ("." not in key and len(found[key]) < len(by_arm))
    ]
    shared = Table(
        "", ("setting", "value"), tuple((f"`{k}`", _value(found[k][0])) for k in keys if k not in different)
    )
    parts = [f"Seeds: {', '.join(str(seed) for seed in sorted({run.seed for run in plan.runs}))}."]
    if different:
        rows = tuple((name, *(_value(s.get(key)) for key in different)) for name, s in by_arm.items())
        parts += ["What differs:", Table("", ("", *(f"`{key}`" for key in different)), rows).markdown()]
    return [*parts, f"<details><summary>What does not differ</summary>\n\n{shared.markdown()}\n\n</details>"]


def _value(value: object) -> str:
    return "" if value is None else "(empty)" if value == "" else str(value)


def _versions(plan: Plan) -> list[str]:
    found: dict[str, set[str]] = {}
    for run in plan.runs:
        for package, version in run.recorded().get("versions", {}).items():
            if package == "platform":
                continue  # the machine's; the run's folder has it
            found.setdefault(package, set()).add(str(version))
    return [", ".join(f"{package} {' and '.join(sorted(versions))}" for package, versions in found.items())]
