"""Flower's records as named arrays and text, for one file: checkpoints, and what simulated clients remember."""

import json
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from numpy.typing import NDArray

from fedappeal.protocol.foreign_text import parse_json
from fedappeal.protocol.packing import array_record, view

FlowerRecord: TypeAlias = ArrayRecord | ConfigRecord | MetricRecord
Arrays: TypeAlias = dict[str, NDArray[np.generic]]


def flattened(records: Mapping[str, FlowerRecord]) -> tuple[Arrays, str]:
    """Return the arrays of records as ``NAME/KEY``, and a text that says what the records are and holds the rest."""
    arrays: Arrays = {}
    described: dict[str, dict[str, object]] = {}
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            arrays |= {f"{name}/{key}": view(array) for key, array in record.items()}
            described[name] = {"kind": "ArrayRecord", "keys": list(record)}
        else:
            described[name] = {"kind": type(record).__name__, "values": dict(record)}
    return arrays, json.dumps(described)


def restored(arrays: Mapping[str, NDArray[np.generic]], text: str) -> dict[str, FlowerRecord]:
    """Return the records that `flattened` was given, all in the same order.

    Raises:
        ValueError: it is damaged, or another version wrote it.
    """
    records: dict[str, FlowerRecord] = {}
    try:
        for name, described in parse_json(text).items():
            if described["kind"] == "ArrayRecord":
                inside = {key: np.asarray(arrays[f"{name}/{key}"], order="C") for key in described["keys"]}
                records[name] = array_record(inside)
            elif described["kind"] == "ConfigRecord":
                records[name] = ConfigRecord(described["values"])
            else:
                records[name] = MetricRecord(described["values"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"records that cannot be read ({error})") from None
    return records
