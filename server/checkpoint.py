"""A checkpoint: models, the strategy's state and the round, in one file replaced at once."""

from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, RecordDict

from fedappeal.files import read_safetensors, write_safetensors
from fedappeal.protocol.config import ConfigError
from server.records import flattened, restored
from server.run_folder import checkpoint_round
from strategies.rounds.weighted_sum import finite

_STATE = "state/"


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
        state = {f"{_STATE}{name}": record for name, record in self.state.items()}
        arrays, records = flattened({"initial": self.initial, "model": self.arrays, **state})
        write_safetensors(path, arrays, {"round": self.server_round, "records": records}, durable)

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint.

        Raises:
            ConfigError: if the file is not there or cannot be read.
        """
        arrays, values = read_safetensors(path)
        server_round = checkpoint_round(path, values)
        try:
            records = restored(arrays, str(values["records"]))
            initial, model = records["initial"], records["model"]
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
