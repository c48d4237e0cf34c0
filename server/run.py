"""One run of the server: builds the strategy, runs it, fills the run's folder."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from client.training.settings import LocalTrainingSettings
from fedappeal.files import CARD, read_safetensors, write_safetensors
from fedappeal.protocol import keys
from fedappeal.protocol.config import RunConfig, Scalar
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.tasks import load_task, task_fingerprint
from server.build import Chosen, build_strategy, chosen, foreign_plugins, own_settings
from server.card import run_card
from server.checkpoint import Checkpoint
from server.run_folder import CHECKPOINT, HISTORY, MODEL, PARTICIPATION, POLICIES, RunFolder, new_path, read_lines
from strategies.rounds.hooks import Hooks, RoundRecord
from strategies.rounds.members import Member
from strategies.rounds.strategy import Strategy

SECONDS_APART = 1.0
"""Between the checkpoints of a run that need not be durable."""


@dataclass
class Recorder(Hooks):
    """Fills the run's folder, round by round.

    Attributes:
        folder: the run's.
        strategy: the run's.
        initial: w_0.
        rounds: number of the last round.
        run: the run's plug-ins.
        watch: told of each round after it is on the disk.
        durable: whether there is a checkpoint after each round.
    """

    folder: RunFolder
    strategy: Strategy
    initial: ArrayRecord
    rounds: int
    run: Chosen
    watch: Hooks
    durable: bool

    def __post_init__(self) -> None:
        self._policies = {str(line["client-id"]) for line in read_lines(self.folder.path / POLICIES)}
        self._written = -math.inf

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        """Record an arrival, and the client's policy where the run mixes policies."""
        client = member.client_id
        version = {"version": member.version} if member.version else {}
        self.folder.event("enrolled", client=client, role=member.role, enrolled=enrolled, **version)
        if len(self.run.mixture.names) > 1 and client not in self._policies:
            self._policies.add(client)
            policy = self.run.mixture.of(self.strategy.shared.seed, client)
            self.folder.append(POLICIES, {"client-id": client, "policy": policy})

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
    """Return w_0 by name.

    Where a file holds it, no torch is imported: that takes seconds, and clients check it.

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
    strategy, plugins = build_strategy(config), chosen(config)
    task = load_task(config.task_settings())
    strategy.metric, strategy.other_metrics = task.metric, task.other_metrics
    named = initial_arrays(config)
    layout = Layout.of(named)
    strategy.check_model(layout.names)
    initial = layout.pack(named) if config.pack else layout.named(named)
    start = Checkpoint(0, initial, initial, strategy.state())
    if config.resume:
        if (folder.path / CHECKPOINT).exists():
            start = Checkpoint.read(folder.path / CHECKPOINT)
            strategy.restore(start.state)
        folder.forget_after(start.server_round)
        folder.event("resumed", round=start.server_round)

    told = ConfigRecord({keys.RUN_KEY: folder.run_key, keys.LAYOUT: layout.hash})
    result = strategy.start(
        grid,
        start.initial,
        config.rounds,
        train_config=ConfigRecord({**told, **training_settings(config, plugins)}),
        evaluate_config=ConfigRecord({**told, keys.TUNING_STEPS: config.tuning_steps}),
        hooks=Recorder(folder, strategy, start.initial, config.rounds, plugins, watch, durable),
        roll_call_config=ConfigRecord({**told, **roll_call_settings(config, plugins)}),
        arrays=start.arrays,
        first_round=start.server_round + 1,
    )
    last = strategy.record.server_round or start.server_round
    card = run_card(task, config, folder, last)
    write_safetensors(
        folder.path / MODEL, layout.unpack(result.arrays), {"round": last, "task": config.task, CARD: card.to_json()}
    )
    folder.event("finished", round=last, reason=strategy.finished)


def training_settings(config: RunConfig, plugins: Chosen) -> dict[str, Scalar]:
    """Return what every TRAIN says of local training: settings, and the run's rule."""
    settings, shared = config.as_config(), LocalTrainingSettings.keys()
    told = {key: settings[key] for key in shared}
    if config.local_rule != "auto":
        name = plugins.rule.settings_name()
        own = own_settings(config, plugins.rule).as_config()
        told |= {keys.LOCAL_RULE: config.local_rule, **{f"{name}.{key}": value for key, value in own.items()}}
    return told


def roll_call_settings(config: RunConfig, plugins: Chosen) -> dict[str, Scalar]:
    """Return what the roll call says besides the run's key and the layout."""
    foreign = (f"{kind}\t{found.name}\t{found}" for kind, found in foreign_plugins(config))
    return {
        keys.FINGERPRINT: task_fingerprint(config.task_settings()),
        keys.PROTOCOL_VERSION: keys.PROTOCOL,
        keys.PLUGINS: "\n".join(foreign),
        keys.NEEDS_LOSS: int(plugins.strategy.needs_losses),
    }
