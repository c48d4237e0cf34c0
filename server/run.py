"""One run of the server: the strategy by its settings, watched by hooks that fill the run's folder."""

import math
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

import fedappeal
from fedappeal.files import read_safetensors, write_safetensors
from fedappeal.protocol import keys
from fedappeal.protocol.config import RunConfig
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.tasks import load_task, task_fingerprint
from server.checkpoint import Checkpoint
from server.run_folder import CHECKPOINT, HISTORY, MODEL, PARTICIPATION, RunFolder, new_path
from server.strategies import STRATEGIES, build_strategy
from strategies.hooks import Hooks, RoundRecord
from strategies.members import Member
from strategies.volunteers import VolunteerStrategy

LOCAL_SETTINGS = (
    *("learning-rate", "batch-size", "local-steps", "local-epochs", "momentum", "weight-decay", "proximal-mu"),
    *("gradient-batch", "gradient-steps"),
)
"""Settings of the local rule, sent with every TRAIN."""


SECONDS_APART = 1.0
"""Between the checkpoints of a run that need not be durable."""


class Recorder(Hooks):
    """Fills the run's folder while the run goes on."""

    def __init__(
        self,
        folder: RunFolder,
        strategy: VolunteerStrategy,
        initial: ArrayRecord,
        rounds: int,
        watch: Hooks,
        durable: bool,
    ) -> None:
        self.folder = folder
        self.strategy = strategy
        self.initial = initial
        self.rounds = rounds
        self.watch = watch
        self.durable = durable
        self._written = -math.inf

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        """Record an arrival."""
        self.folder.event("enrolled", client=member.client_id, role=member.role, enrolled=enrolled)

    def on_refused(self, node_id: int, reason: str) -> None:
        """Record a client that does not fit the run, with its reason."""
        self.folder.event("refused", node=str(node_id), reason=reason)
        self.watch.on_refused(node_id, reason)

    def on_round_start(self, server_round: int) -> None:
        """Record that a round began."""
        self.folder.event("round", round=server_round)

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Write the round's lines, then the checkpoint that makes them count."""
        decisions = [
            {"round": record.server_round, "client-id": client, "decision": decision}
            for client, decision in sorted(record.decisions.items())
        ]
        self.folder.append(PARTICIPATION, *decisions)
        self.folder.append(HISTORY, record.as_line())
        over = record.server_round == self.rounds or bool(self.strategy.finished)
        if self.durable or over or time.monotonic() - self._written >= SECONDS_APART:
            checkpoint = Checkpoint(record.server_round, self.initial, arrays, self.strategy.state())
            checkpoint.write(self.folder.path / CHECKPOINT, self.durable)
            self._written = time.monotonic()
        self.watch.on_round_end(record, arrays)


def initial_arrays(config: RunConfig) -> Arrays:
    """Return w_0 by name. Where a file holds it, no torch is imported: that takes seconds, and clients check it.

    Raises:
        ConfigError: if the file cannot be read.
    """
    if config.initial_model:
        return read_safetensors(Path(config.initial_model))[0]
    from fedappeal.tasks import initial

    return initial.initial_arrays(load_task(config.task_settings()), config.seed)


def run(grid: Grid, config: RunConfig, watch: Hooks | None = None, durable: bool = True) -> None:
    """Run, or go on with, the run that the settings describe.

    Args:
        grid: Flower's grid.
        config: the settings.
        watch: told of each round after it is on the disk.
        durable: whether there is a checkpoint after each round, and it is to survive a power cut; else there is one
            about every second, and after the last round.

    Raises:
        ConfigError: for settings that do not fit; RollCallError: if too few clients came.
    """
    path = Path(config.out or new_path(config)).absolute()
    folder = RunFolder.open(path) if config.resume else RunFolder.create(path, config)
    with folder.alone():
        try:
            _run(grid, config, folder, watch or Hooks(), durable)
        except Exception as error:
            folder.event("failed", reason=str(error))
            raise


def _run(grid: Grid, config: RunConfig, folder: RunFolder, watch: Hooks, durable: bool) -> None:
    strategy = build_strategy(config)
    named = initial_arrays(config)
    layout = Layout.of(named)
    strategy.check_layout(layout.names)
    start = Checkpoint(0, layout.pack(named), layout.pack(named), strategy.state())
    if config.resume:
        if (folder.path / CHECKPOINT).exists():
            start = Checkpoint.read(folder.path / CHECKPOINT)
            strategy.restore(start.state)
        folder.forget_after(start.server_round)
        folder.event("resumed", round=start.server_round)

    told = ConfigRecord({keys.RUN_KEY: folder.run_key, keys.LAYOUT: layout.hash})
    settings = config.as_config()
    local = {key: settings[key] for key in LOCAL_SETTINGS}
    if config.local_rule != "auto":
        local[keys.LOCAL_RULE] = config.local_rule
    result = strategy.start(
        grid,
        start.initial,
        config.rounds,
        train_config=ConfigRecord({**told, **local}),
        evaluate_config=ConfigRecord({**told, keys.TUNING_STEPS: config.tuning_steps}),
        hooks=Recorder(folder, strategy, start.initial, config.rounds, watch, durable),
        roll_call_config=ConfigRecord(
            {
                **told,
                keys.FINGERPRINT: task_fingerprint(config.task_settings()),
                keys.VERSION: fedappeal.__version__,
                keys.NEEDS_LOSS: int(STRATEGIES[config.strategy].needs_loss),
            }
        ),
        arrays=start.arrays,
        first_round=start.server_round + 1,
    )
    write_safetensors(
        folder.path / MODEL,
        layout.unpack(result.arrays),
        {"round": strategy.record.server_round or start.server_round, "task": config.task},
    )
    folder.event("finished", round=strategy.record.server_round or start.server_round, reason=strategy.finished)
