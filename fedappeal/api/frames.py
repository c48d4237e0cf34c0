"""A run's folder as pandas DataFrames: a row a round, and a row a round and client."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedappeal.record.lines import REQUIREMENTS
from fedappeal.record.run_folder import HISTORY, MEASUREMENTS, PARTICIPATION, read_lines
from fedappeal.system.natural_order import natural_order
from fedappeal.views.comparison.frames import pandas

if TYPE_CHECKING:
    import pandas as pd

_NOT_NUMBERS = ("failures", "decisions")


def history(path: Path) -> "pd.DataFrame":
    """Return a run's rounds, a row each.

    Args:
        path: the run's folder.

    Raises:
        ConfigError: pandas is not installed.
    """
    frame = pandas().DataFrame(read_lines(path / HISTORY))
    return frame.drop(columns=[name for name in _NOT_NUMBERS if name in frame])


def clients(path: Path) -> "pd.DataFrame":
    """Return what clients did and measured, a row a round and client.

    Args:
        path: the run's folder.

    Returns:
        ``round``, ``client``; ``decision`` (missing where the round did not ask the client); ``loss``, the task's
        metrics and ``appealed`` of the round's new model on its test data (missing in rounds without evaluation);
        ``requirement``, its rho_k.

    Raises:
        ConfigError: pandas is not installed.
    """
    pd = pandas()
    decided = {(line["round"], line["client-id"]): line["decision"] for line in read_lines(path / PARTICIPATION)}
    measured: dict[tuple[int, str], Mapping[str, Any]] = {}
    columns: list[str] = []
    for line in read_lines(path / MEASUREMENTS):
        keys = [key for key in line if key not in ("round", "client-ids")]
        columns = columns or keys
        for place, client in enumerate(line["client-ids"]):
            measured[line["round"], client] = {key: line[key][place] for key in keys}
    required = {line["client-id"]: line["requirement"] for line in read_lines(path / REQUIREMENTS)}
    rows = [
        {
            "round": server_round,
            "client": client,
            "decision": decided.get((server_round, client)),
            **{key.replace("-", "_"): measured.get((server_round, client), {}).get(key) for key in columns},
            "requirement": required.get(client),
        }
        for server_round, client in sorted(
            decided.keys() | measured.keys(), key=lambda row: (row[0], natural_order(row[1]))
        )
    ]
    names = ["round", "client", "decision", *(key.replace("-", "_") for key in columns), "requirement"]
    return pd.DataFrame(rows, columns=names)
