"""A run's folder as pandas DataFrames: a row a round, and a row a round and client."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedappeal.record.reader import Record
from fedappeal.system.natural_order import natural_order
from fedappeal.views.comparison.export import pandas

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
    frame = pandas().DataFrame(Record(path).history)
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
    decided = {(line["round"], line["client-id"]): line["decision"] for line in Record(path).decisions}
    measured: dict[tuple[int, str], Mapping[str, Any]] = {}
    columns: list[str] = []
    for line in Record(path).measurements:
        keys = [key for key in line if key not in ("round", "client-ids")]
        columns = columns or keys
        for place, client in enumerate(line["client-ids"]):
            measured[line["round"], client] = {key: line[key][place] for key in keys}
    required = {line["client-id"]: line["requirement"] for line in Record(path).requirements}
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
