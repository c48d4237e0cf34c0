"""Rows that a page lacks: they alone are run, and join its record."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.studies.experiment import Experiment
from fedappeal.studies.record import Record, rows_settings, text_of
from server.build import chosen

_OWN_RUNS = ("--set", "--grid")
"""Options of a page's command that change its runs."""


def missing_rows(record: Record) -> Experiment:
    """Return the experiment with those rows alone that its record lacks, or has not all seeds of.

    Raises:
        ConfigError: the record has all rows, or its own rows were run in another way than the experiment says.
    """
    experiment, numbers = record.experiment, record.numbers
    if experiment.numbers_of:
        raise ConfigError(f"missing: {experiment.name} has the runs of {experiment.numbers_of}; add the rows there")
    if record.quick:
        raise ConfigError(f"missing: the numbers of {experiment.name} are of the short form; run all of it")
    if changed := [option for option in _OWN_RUNS if option in numbers["command"].split()]:
        raise ConfigError(f"missing: the numbers of {experiment.name} are of a run with {changed[0]}; run all of it")
    whole = {row["name"] for row in numbers["arms"] if len(row["seeds"]) == numbers["seeds"]}
    if not (arms := tuple(arm for arm in experiment.arms if arm.name not in whole)):
        raise ConfigError(f"missing: the page of {experiment.name} has all rows")
    return dataclasses.replace(experiment, arms=arms, quick=dataclasses.replace(experiment.quick, arms=()))


def joined(record: Record, added: Record) -> Record:
    """Return a record with the rows of another run of the same experiment, all in the experiment's order.

    Rows that the experiment does not have any more are left out. General settings that are newer than the record
    count with their defaults, which change no run.

    Args:
        record: the page's.
        added: of the rows that it lacked.

    Raises:
        ConfigError: other numbers of seeds.
    """
    old, new, experiment = record.numbers, added.numbers, record.experiment
    if old["seeds"] != new["seeds"]:
        raise ConfigError(f"seeds = {new['seeds']} is not allowed: the page's other rows have {old['seeds']}")
    names = [arm.name for arm in experiment.arms]
    run = {arm.name for arm in added.experiment.arms}
    kept = {name for name in names if name not in run}
    columns = {key: title for key, title in old["measures"].items() if key in new["measures"]}
    rows = {row["name"]: row for row in (*old["arms"], *new["arms"])}
    drawn = {row["name"] for row in old["arms"] if row["seeds"]} - {*old.get("undrawn", ())}
    reasons = {name: why for name, why in old["skipped"].items() if name in kept} | new["skipped"]
    failed = {run: why for run, why in old["failed"].items() if run.rpartition(", seed ")[0] in kept} | new["failed"]
    numbers = {
        **old,
        "measures": columns,
        "arms": [
            {**rows[name], "ours": {key: rows[name]["ours"][key] for key in columns}}
            for name in names
            if name in rows
        ],
        "undrawn": [name for name in names if rows.get(name, {}).get("seeds") and name not in drawn],
        "diverged": _diverged(experiment, kept, old["diverged"], new["diverged"]),
        "skipped": {name: reasons[name] for name in names if name in reasons},
        "failed": dict(sorted(failed.items(), key=lambda item: names.index(item[0].rpartition(", seed ")[0]))),
        "settings": rows_settings(_settings(record, added), old["settings"]["seeds"]),
        "versions": {
            package: sorted({*old["versions"].get(package, ()), *new["versions"].get(package, ())})
            for package in {**old["versions"], **new["versions"]}
        },
    }
    return Record(experiment, numbers)


def _diverged(
    experiment: Experiment, kept: set[str], old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return the runs that diverged, in the order of the experiment's rows: of rows that were kept, and new ones."""

    def row(line: Sequence[str]) -> tuple[str, str]:
        return line[0], line[1].rpartition(", seed ")[0]

    stay = {(arm.group, arm.shown) for arm in experiment.arms if arm.name in kept}
    order = [(arm.group, arm.shown) for arm in experiment.arms]
    found = [list(line) for line in (*(line for line in old if row(line) in stay), *new)]
    return sorted(found, key=lambda line: order.index(row(line)))


def _settings(record: Record, added: Record) -> dict[str, dict[str, str]]:
    """Return all settings of each row."""
    experiment = record.experiment
    found = {**_of_rows(experiment, record.numbers["settings"]), **_of_rows(experiment, added.numbers["settings"])}
    if not experiment.compute:
        defaults = {key: text_of(value) for key, value in RunConfig.parse_recorded({}).as_config().items()}
        keys = {key for row in found.values() for key in row if key in defaults}
        found = {name: {**{key: defaults[key] for key in keys}, **row} for name, row in found.items()}
    return {arm.name: found[arm.name] for arm in experiment.arms if arm.name in found}


def _of_rows(experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the settings of a record's rows; of plug-ins' shared ones those of a row's own plug-ins."""
    arms = {arm.name: arm for arm in experiment.arms}
    found = {}
    for name, values in settings["rows"].items():
        given = {**experiment.settings, **(arms[name].settings if name in arms else {})}
        own = set() if experiment.compute else chosen(RunConfig.parse_recorded(given)).all_settings().keys()
        shared = {key: value for key, value in settings["shared"].items() if "." not in key or key in own}
        different = zip(settings["different"], values, strict=True)
        found[name] = {**shared, **{key: value for key, value in different if value}}
    return found
