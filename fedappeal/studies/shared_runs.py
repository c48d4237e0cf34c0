"""The numbers of an experiment whose runs are all another's: taken over from that one's page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedappeal.studies.experiment import Experiment
from fedappeal.studies.record import Record
from fedappeal.system.files import replace_file


def take_over(experiment: Experiment, folder: Path) -> Record | None:
    """Write and return the record of an experiment that has no runs of its own.

    Args:
        experiment: the experiment.
        folder: of the pages.

    Returns:
        None where it has a record of its own, or the other page's numbers are not in the folder.
    """
    source = folder / f"{experiment.numbers_of}.json"
    if not experiment.numbers_of or not source.exists():
        return None
    record = Record(experiment, taken_over(experiment, json.loads(source.read_text())))
    replace_file(
        folder / f"{experiment.name}.json", (json.dumps(record.numbers, indent=1, allow_nan=False) + "\n").encode()
    )
    return record


def taken_over(experiment: Experiment, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's numbers, of the other's the rows and columns that are its own."""
    rows = {row["name"]: row for row in source["arms"]}
    arms = {arm.name: arm for arm in experiment.arms}
    groups = {arm.group for arm in experiment.arms}
    measures = {m.key: m.title for m in experiment.measures if m.key in source["measures"]}
    found = [
        {
            "name": name,
            "group": arm.group,
            "paper": dict(arm.paper),
            "seeds": rows[name]["seeds"],
            "ours": {key: rows[name]["ours"][key] for key in measures},
        }
        for name, arm in arms.items()
        if name in rows
    ]
    return {
        **source,
        "experiment": experiment.name,
        "source": experiment.source,
        "command": source["command"].replace(source["experiment"], experiment.name, 1),
        "measures": measures,
        "arms": found,
        "figure": experiment.figure is not None,
        "diverged": [row for row in source["diverged"] if row[0] in groups],
        "undrawn": [name for name in source.get("undrawn", ()) if name in arms],
        "skipped": {name: reason for name, reason in source["skipped"].items() if name in arms},
        "failed": {run: why for run, why in source["failed"].items() if run.rpartition(", seed ")[0] in arms},
        "settings": _settings(source["settings"], [row["name"] for row in found]),
    }


def _settings(settings: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the settings of some rows: those that are the same in all of them are shared."""
    rows = {name: dict(zip(settings["different"], settings["rows"][name], strict=True)) for name in names}
    different = [key for key in settings["different"] if len({row[key] for row in rows.values()}) > 1]
    alike = {key: rows[names[0]][key] for key in settings["different"] if key not in different}
    return {
        "seeds": settings["seeds"],
        "different": different,
        "rows": {name: [row[key] for key in different] for name, row in rows.items()},
        "shared": dict(sorted({**settings["shared"], **{k: v for k, v in alike.items() if v}}.items())),
    }
