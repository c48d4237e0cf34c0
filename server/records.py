"""Flower's records as named arrays and text, to be kept in one file."""

import json
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from numpy.typing import NDArray

from fedappeal.protocol.packing import Arrays, array_record, view

FlowerRecord: TypeAlias = ArrayRecord | ConfigRecord | MetricRecord


def flattened(records: Mapping[str, FlowerRecord]) -> tuple[dict[str, NDArray[np.generic]], str]:
    """Return the records' arrays by ``NAME/KEY``, and a text that holds the rest."""
    arrays: dict[str, NDArray[np.generic]] = {}
    described: dict[str, dict[str, object]] = {}
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            arrays |= {f"{name}/{key}": view(array) for key, array in record.items()}
            described[name] = {"kind": "ArrayRecord", "keys": list(record)}
        else:
            described[name] = {"kind": type(record).__name__, "values": dict(record)}
    return arrays, json.dumps(described)


def restored(arrays: Arrays, text: str) -> dict[str, FlowerRecord]:
    """Return the records that `flattened` was given, all in the same order.

    Raises:
        KeyError: for what another version wrote.
    """
    records: dict[str, FlowerRecord] = {}
    for name, described in json.loads(text).items():
        if described["kind"] == "ArrayRecord":
            inside = {key: np.asarray(arrays[f"{name}/{key}"], order="C") for key in described["keys"]}
            records[name] = array_record(inside)
        elif described["kind"] == "ConfigRecord":
            records[name] = ConfigRecord(described["values"])
        else:
            records[name] = MetricRecord(described["values"])
    return records
