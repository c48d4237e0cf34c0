"""Data of the client's page: read from its state folder, bounded, as JSON."""

from pathlib import Path
from typing import Any

from client.limits.limits import Limits, read_limits
from client.limits.surroundings import battery
from client.process.owner import PAUSED, client_name, departures, resting
from client.process.work import work_of
from client.state.activity import Activity, RunActivity
from client.state.preferred import describe_preferred
from client.state.store import DiskStore
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import fact

_LONGEST = 300


def page_data(folder: Path) -> dict[str, Any]:
    """Return the page's data; texts of other parties are printable and short."""
    store = DiskStore(folder) if folder.is_dir() else None  # a page makes no folder
    departed = departures(store) if store else ()
    runs = [_run(run, run.run_key in departed) for run in reversed(Activity(folder).runs().values())]
    work = work_of(folder)
    return {
        "client": printable(client_name(store), _LONGEST) if store else "no client has kept state here yet",
        "paused": (folder / PAUSED).exists(),
        "rests": printable(resting(folder), _LONGEST),
        "works": {"what": printable(work.what, _LONGEST), "since": work.since} if work else None,
        "battery": battery(),
        "runs": runs,
        "prefers": [printable(line, 2 * _LONGEST) for line in describe_preferred(store)] if store else [],
    }


def limits_data(folder: Path, started_with: str = "") -> dict[str, Any]:
    """Return the limits for the page: each with unit and meaning, and a damaged file's problem.

    Args:
        folder: the state folder.
        started_with: limits that the client was started with, which go before those of the folder.
    """
    problem = ""
    try:
        limits = read_limits(folder)
    except ConfigError as error:
        limits, problem = Limits(), printable(error, _LONGEST)
    values, counts = limits.as_config(), limits.with_text(started_with).as_config()
    fields = [
        {
            "key": key,
            "value": values[key],
            "unit": fact(field, "unit"),
            "help": field.description,
            "instead": counts[key] if counts[key] != values[key] else None,
        }
        for key, field in Limits.by_key().items()
    ]
    return {"limits": fields, "problem": problem}


def _run(run: RunActivity, departed: bool) -> dict[str, Any]:
    judged = run.judged
    return {
        "run": printable(run.run_key, _LONGEST),
        "what": printable(run.what, _LONGEST),
        "departed": departed,
        "joined": run.done.get("joined", 0),
        "sat_out": run.done.get("sat-out", 0),
        "failed": run.done.get("failed", 0),
        "seconds": run.seconds,
        "bytes_up": run.bytes_up,
        "bytes_down": run.bytes_down,
        "last": run.last,
        "judged": None
        if judged is None
        else f"round {run.server_round}: {printable(judged.of, 80)} {judged.figure:.4f}, "
        f"required {judged.bound} {judged.requirement:.4f}",
        "met": judged is not None and judged.met,
        "goodwill": printable(run.goodwill_line, _LONGEST),
    }
