"""A checkpoint: the model, the strategy's state and the round, in one file replaced at once.

w_0, which never changes, is not in it: `server.initial_files`.
"""

from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, RecordDict

from fedappeal.protocol.packing import content_hash
from fedappeal.record.folder import checkpoint_round
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.files import read_safetensors, write_safetensors
from server.initial_files import read_initial, write_initial
from server.records import flattened, restored
from strategies.rounds.sums.weighted_sum import finite

_STATE = "state/"
_INITIAL = "initial"
"""Name of the scalar that holds w_0's hash; in a checkpoint of an earlier version, of w_0's record."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Attributes:
        server_round: the last finished round; 0: none.
        initial: w_0, from which late clients still warm up.
        arrays: the global model after that round.
        state: what the strategy carries.
        initial_hash: of w_0; empty: to be worked out.
    """

    server_round: int
    initial: ArrayRecord
    arrays: ArrayRecord
    state: RecordDict
    initial_hash: str = ""

    def write(self, path: Path, durable: bool = True) -> None:
        """Write the checkpoint, atomically, and w_0 before it where that is not there.

        Args:
            path: the file.
            durable: as in `write_safetensors`.
        """
        digest = self.initial_hash or content_hash(self.initial)
        write_initial(path.parent, self.initial, digest, durable)
        state = {f"{_STATE}{name}": record for name, record in self.state.items()}
        arrays, records = flattened({"model": self.arrays, **state})
        values: dict[str, Scalar] = {"round": self.server_round, _INITIAL: digest, "records": records}
        write_safetensors(path, arrays, values, durable)

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint; one of an earlier version holds w_0 itself.

        Raises:
            ConfigError: if the file, or that of w_0, is not there or cannot be read.
        """
        arrays, values = read_safetensors(path)
        server_round = checkpoint_round(path, values)
        beside = {_INITIAL: read_initial(path.parent, str(values[_INITIAL]))} if _INITIAL in values else {}
        try:
            records = {**restored(arrays, str(values["records"])), **beside}
            initial, model = records[_INITIAL], records["model"]
            if not (isinstance(initial, ArrayRecord) and isinstance(model, ArrayRecord)):
                raise ValueError("its models are no arrays")
        except (KeyError, ValueError):
            raise ConfigError(
                f"file '{path}' cannot be read: it is damaged, or another version of fedappeal wrote it"
            ) from None
        if not (finite(initial) and finite(model)):
            raise ConfigError(f"file '{path}' cannot be used: its model has values that are not finite")
        state = {name.removeprefix(_STATE): r for name, r in records.items() if name.startswith(_STATE)}
        return cls(server_round, initial, model, RecordDict(state))
