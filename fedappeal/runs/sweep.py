"""Sweeps: a plan for each combination of swept values."""

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from fedappeal.core.plugins import Plugin, is_ours
from fedappeal.record.folder import check_new, new_path
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig, scalar
from server.build import Chosen, chosen

MOST_RUNS = 10_000
"""Runs of one sweep; more are a slip of the pen."""
_WHOLE = re.compile("[0-9]{1,18}")


def combinations(varied: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of values, by name; the last name changes fastest."""
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]


def name_of_run(varied: Mapping[str, Any]) -> str:
    """Return what tells a run from the others of its sweep: ``seed-1-strategy-maxfl``."""
    return "-".join(f"{key}-{value}" for key, value in varied.items())


def check_distinct(runs: Iterable[tuple[str, object]], sweep: str) -> None:
    """Check that no two runs of a sweep are the same.

    Args:
        runs: each run's name, and all that makes it.
        sweep: what the message calls the sweep.

    Raises:
        ConfigError: names the two.
    """
    names: dict[object, str] = {}
    for name, identity in runs:
        if identity in names:
            raise ConfigError(f"{sweep} is not allowed: {names[identity]} and {name} are the same run")
        names[identity] = name


def swept_plans(
    settings: Mapping[str, Any], sweep: Sequence[str] = (), out: str = "", data_dir: str = ""
) -> list[RunPlan]:
    """Return a plan for each combination of swept values; for a lone run without any.

    Args:
        settings: settings that all runs share; those of plug-ins under ``NAME.KEY``.
        sweep: ``KEY=VALUE,VALUE,...`` or ``NAME.KEY=VALUE,...``; a range of whole numbers is written ``0..4``. A run
            whose plug-ins do not know a key leaves it alone.
        out: folder of the run, or of all runs; empty: a new one under ``runs``.
        data_dir: folder of the data sets.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    written = f"sweep = '{' '.join(sweep)}'"
    varied: dict[str, list[Any]] = {}
    for text in sweep:
        key, values = _swept(text)
        if key in varied:
            raise ConfigError(f"sweep = '{text}' is not allowed: {key} is swept twice; give all its values at once")
        varied[key] = values
    if (runs := prod(map(len, varied.values()))) > MOST_RUNS:
        raise ConfigError(f"{written} is not allowed: {runs} runs, at most {MOST_RUNS}")
    each_varied = combinations(varied)
    configs = [RunConfig.parse({**settings, **values}) for values in each_varied]
    if not out:
        shared = {key: value for key, value in settings.items() if key not in varied}
        out = str(new_path(RunConfig.parse(shared) if varied else configs[0]))
    names = [name_of_run(values).replace(":", ".").replace("/", "_") for values in each_varied]
    check_distinct(zip(names, (tuple(sorted(c.as_config().items())) for c in configs), strict=True), written)
    root = Path(out).absolute()
    plans = [
        RunPlan(plugins, root / name if name else root, name or "run", data_dir, unused=tuple(unused))
        for (plugins, unused), name in zip(_without_others([chosen(c) for c in configs]), names, strict=True)
    ]
    for plan in plans:
        plan.plugins.check()
        check_new(plan.path)
    return plans


def _swept(text: str) -> tuple[str, list[Any]]:
    """Return the key and the values of ``KEY=VALUE,VALUE,...``."""
    key, equals, values = text.partition("=")
    key = key.strip().replace("_", "-")
    general = RunConfig.keys()
    of_plugin = all(key.partition("."))
    if not equals or not values or not (of_plugin or key in general):
        near = [] if of_plugin else difflib.get_close_matches(key, general, n=1)
        hint = f"; did you mean '{near[0]}'?" if near and near[0] != key else ""
        raise ConfigError(
            f"sweep = '{text}' is not allowed: KEY=VALUE,VALUE,... with a key of the run's settings, "
            f"or NAME.KEY of a plug-in{hint}"
        )
    swept: list[Any] = []
    for value in values.split(","):
        first, dots, last = value.partition("..")
        whole = dots and all(_WHOLE.fullmatch(end) for end in (first, last))
        if whole and int(first) > int(last):
            raise ConfigError(f"sweep = '{text}' is not allowed: the range {value} is empty; {last}..{first}?")
        if whole and int(last) - int(first) >= MOST_RUNS:
            raise ConfigError(f"sweep = '{text}' is not allowed: at most {MOST_RUNS} runs")
        swept += range(int(first), int(last) + 1) if whole else [scalar(value) if of_plugin else value]
    return key, swept


def foreign_sections(runs: Sequence[Chosen]) -> list[frozenset[str]]:
    """Return, for each run, the names of own plug-ins that only other runs of its sweep use."""
    own = [frozenset(p.settings_name() for p in run.plugins if not is_ours(p)) for run in runs]
    return [frozenset[str]().union(*own) - of_run for of_run in own]


def _without_others(runs: Sequence[Chosen]) -> list[tuple[Chosen, list[str]]]:
    """Return each run without the settings of own plug-ins that only others use, and what it does not use.

    Raises:
        ConfigError: for a setting of no known plug-in, or one that its plug-in does not have.
    """
    beside: dict[str, type[Plugin]] = {p.settings_name(): p for run in runs for p in run.plugins}
    trimmed = []
    for run, foreign in zip(runs, foreign_sections(runs), strict=True):
        kept = tuple((key, value) for key, value in run.config.plugins if key.partition(".")[0] not in foreign)
        config = run.config.model_copy(update={"plugins": kept})
        trimmed.append((replace(run, config=config), run.unused_settings(beside)))
    return trimmed
