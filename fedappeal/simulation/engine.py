"""One simulated run: the project's ServerApp and ClientApp, with all clients in this process."""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from flwr.app import Context, RecordDict

from client import registry
from client.app import app as client_app
from client.arithmetic import Arithmetic
from client.loaded import pick_device, task_of
from fedappeal.protocol.config import ConfigError, RunConfig
from fedappeal.simulation.grid import FIRST_NODE, RUN, InProcessGrid
from fedappeal.simulation.pool import Pool
from fedappeal.simulation.stacking import Stacker, why_not
from server.run import run
from server.run_folder import RunFolder
from server.strategies import build_strategy
from strategies.hooks import Hooks, RoundRecord

MODES = ("auto", "stacked", "clients")
_DAY = 86_400.0


@dataclass(frozen=True)
class Simulation:
    """How a run is simulated.

    Attributes:
        mode: ``stacked`` (clients train side by side), ``clients`` (one after another), or ``auto``.
        device: where data and models are.
        data_dir: folder with the data sets.
        threads: PyTorch threads; 0: as PyTorch has it.
    """

    mode: str = "auto"
    device: str = "cpu"
    data_dir: str = ""
    threads: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode = '{self.mode}' is not allowed: {', '.join(MODES)}")
        if self.threads < 0:
            raise ConfigError(f"threads = {self.threads} is not allowed: 0 (as PyTorch has it) or more")


def choose_mode(config: RunConfig, simulation: Simulation) -> tuple[str, str]:
    """Return the mode of a run, ``stacked`` or ``clients``, and why where it could not be stacked.

    Raises:
        ConfigError: where ``stacked`` was asked for and is not possible; names the layer or the rule.
    """
    if simulation.mode == "clients":
        return "clients", ""
    rule = build_strategy(config).local_rule if config.local_rule == "auto" else config.local_rule
    model = task_of(config.task_settings(), simulation.data_dir).initial_model(config.seed)
    reason = why_not(model, rule)
    if reason and simulation.mode == "stacked":
        raise ConfigError(f"mode = 'stacked' is not allowed: {reason} (auto, clients)")
    return ("clients", reason) if reason else ("stacked", "")


def simulate(
    config: RunConfig,
    folder: RunFolder,
    simulation: Simulation,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
) -> None:
    """Run, or go on with, the run of a folder.

    Args:
        config: the run's settings.
        folder: its folder; a checkpoint in it is gone on from (clients then have forgotten what they knew).
        simulation: how.
        on_round: told of each round.

    Raises:
        ConfigError: for settings that do not fit.
    """
    if simulation.threads:
        torch.set_num_threads(simulation.threads)
    device = pick_device(simulation.device)
    mode, _ = choose_mode(config, simulation)
    clients = config.clients + config.unseen_clients
    pool = Pool(task_of(config.task_settings(), simulation.data_dir), clients, device)
    stacker = Stacker(pool) if mode == "stacked" else None
    # Nobody is late in one process, however long a round takes.
    settings = config.model_copy(
        update={"out": str(folder.path), "resume": True, "round_timeout": _DAY, "start_timeout": _DAY}
    )
    told = settings.as_config()

    def context(k: int) -> Context:
        node = {"partition-id": k, "num-partitions": clients, "data-dir": simulation.data_dir, "device": str(device)}
        return Context(RUN, FIRST_NODE + k, node, RecordDict(), told)  # type: ignore[arg-type]

    grid = InProcessGrid(client_app, clients, context, stacker)
    gc.freeze()  # what is there by now stays until the run ends: it need not be looked through again and again
    try:
        with registry.using(registry.Registry(stacker or Arithmetic(), pool.client)):
            run(grid, settings, _Watch(on_round), durable=False)
    finally:
        gc.unfreeze()  # else a process that runs many would keep what belonged to each


class _Watch(Hooks):
    def __init__(self, on_round: Callable[[RoundRecord], None]) -> None:
        self._on_round = on_round

    def on_refused(self, node_id: int, reason: str) -> None:
        """All clients are this program: where one does not fit the run, none comes in its place."""
        raise ConfigError(f"client {node_id - FIRST_NODE} declined: {reason}")

    def on_round_end(self, record: RoundRecord, arrays: object) -> None:
        self._on_round(record)


def quiet() -> None:
    """Leave the round loop's log to the run's folder and the progress bar."""
    logging.getLogger("fedappeal").setLevel(logging.WARNING)
