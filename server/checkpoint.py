"""A checkpoint: models, the strategy's state and the round, in one file replaced at once."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedappeal.files import read_safetensors, write_safetensors
from fedappeal.protocol.packing import view


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Attributes:
        server_round: the last finished round; 0: none.
        initial: w_0, from which late clients still warm up.
        arrays: the global model after that round.
        state: what the strategy carries.
    """

    server_round: int
    initial: ArrayRecord
    arrays: ArrayRecord
    state: RecordDict

    def write(self, path: Path, durable: bool = True) -> None:
        """Write the checkpoint, atomically; ``durable`` as in `write_safetensors`."""
        arrays: dict[str, NDArray[np.generic]] = {}
        scalars: dict[str, dict[str, object]] = {}
        records = {
            "initial": self.initial,
            "model": self.arrays,
            **{f"state/{n}": r for n, r in self.state.items()},
        }
        for name, record in records.items():
            if isinstance(record, ArrayRecord):
                arrays |= {f"{name}/{key}": view(array) for key, array in record.items()}
            scalars[name] = {
                "kind": type(record).__name__,
                "values": {} if isinstance(record, ArrayRecord) else dict(record),
            }
        write_safetensors(path, arrays, {"round": self.server_round, "records": json.dumps(scalars)}, durable)

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint.

        Raises:
            ConfigError: if the file is not there or cannot be read.
        """
        arrays, values = read_safetensors(path)
        state = RecordDict()
        models: dict[str, ArrayRecord] = {}
        for name, described in json.loads(str(values["records"])).items():
            if described["kind"] == "ArrayRecord":
                inside = {k.removeprefix(f"{name}/"): a for k, a in arrays.items() if k.startswith(f"{name}/")}
                models[name] = ArrayRecord({key: Array(np.asarray(a, order="C")) for key, a in inside.items()})
            elif described["kind"] == "ConfigRecord":
                state[name.removeprefix("state/")] = ConfigRecord(described["values"])
            else:
                state[name.removeprefix("state/")] = MetricRecord(described["values"])
        for name, record in models.items():
            if name.startswith("state/"):
                state[name.removeprefix("state/")] = record
        return cls(int(values["round"]), models["initial"], models["model"], state)
