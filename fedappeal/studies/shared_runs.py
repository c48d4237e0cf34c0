"""The numbers of an experiment whose runs are all another's: taken over from that one's page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedappeal.studies.experiment import Experiment
from fedappeal.studies.record import Record, rows_settings
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
    settings = source["settings"]
    names = [name for name in arms if name in rows]
    of_rows = {
        name: {**settings["shared"], **{k: v for k, v in zip(settings["different"], values, strict=True) if v}}
        for name, values in settings["rows"].items()
    }
    taken = [
        {
            "name": name,
            "group": arms[name].group,
            "paper": dict(arms[name].paper),
            "seeds": rows[name]["seeds"],
            "ours": {key: rows[name]["ours"][key] for key in measures},
        }
        for name in names
    ]
    return {
        **source,
        "experiment": experiment.name,
        "source": experiment.source,
        "command": source["command"].replace(source["experiment"], experiment.name, 1),
        "measures": measures,
        "arms": taken,
        "figure": experiment.figure is not None,
        "diverged": [row for row in source["diverged"] if row[0] in groups],
        "undrawn": [name for name in source.get("undrawn", ()) if name in arms],
        "skipped": {name: reason for name, reason in source["skipped"].items() if name in arms},
        "failed": {run: why for run, why in source["failed"].items() if run.rpartition(", seed ")[0] in arms},
        "settings": rows_settings({name: of_rows[name] for name in names}, source["settings"]["seeds"]),
    }
