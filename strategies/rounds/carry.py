"""State carried from round to round, as Flower's records."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedappeal.protocol.packing import array_record, view


def packed(carried: Mapping[str, Mapping[str, Any]]) -> RecordDict:
    """Return named dicts as records; an empty dict is left out."""
    state = RecordDict()
    for name, values in carried.items():
        if values:
            arrays = all(isinstance(value, np.ndarray) for value in values.values())
            state[name] = array_record(values) if arrays else ConfigRecord(dict(values))
    return state


def unpacked(state: RecordDict) -> dict[str, dict[str, Any]]:
    """Return what `packed` was given; arrays are read-only."""
    carried: dict[str, dict[str, Any]] = {}
    for name, record in state.items():
        if isinstance(record, ArrayRecord):
            carried[name] = {key: view(array) for key, array in record.items()}
        elif isinstance(record, ConfigRecord):
            carried[name] = dict(record)
    return carried
