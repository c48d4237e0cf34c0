"""One simulated run: the project's ServerApp and ClientApp, with all clients in this process."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Context, RecordDict

from client.app import client_app
from client.data.cache import Cache, pick_device
from client.participants import Participants
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from fedappeal.protocol.plugins import Allowed
from fedappeal.simulation.grid import FIRST_NODE, RUN, InProcessGrid
from fedappeal.simulation.pool import Pool
from fedappeal.simulation.process_wide import evaluation_workers, frozen_objects, torch_threads
from fedappeal.simulation.scheduler import BatchScheduler, why_not
from fedappeal.tasks.task import Task
from server.build import chosen, packages_named
from server.run import run
from server.run_folder import RunFolder
from strategies.rounds.hooks import Hooks, RoundRecord

MODES = ("auto", "batched", "sequential")
_DAY = 86_400.0


@dataclass(frozen=True)
class Simulation:
    """How a run is simulated.

    Attributes:
        mode: ``batched`` (clients train as one batch), ``sequential`` (one after another), or ``auto``.
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


def choose_mode(config: RunConfig, simulation: Simulation, cache: Cache | None = None) -> tuple[str, str]:
    """Return the mode of a run, ``batched`` or ``sequential``, and why where it cannot be batched.

    Args:
        config: the run's settings.
        simulation: how it is simulated.
        cache: holds the task, for the simulation to use as well; None: one for this question.

    Raises:
        ConfigError: where ``batched`` was asked for and is not possible; names the layer or the rule.
    """
    if simulation.mode == "sequential":
        return "sequential", ""
    cache = cache or Cache()
    model = cache.initial(_task(config, simulation, cache), config.seed)
    reason = why_not(model, chosen(config).rule)
    if reason and simulation.mode == "batched":
        raise ConfigError(f"mode = 'batched' is not allowed: {reason} (auto, sequential)")
    return ("sequential", reason) if reason else ("batched", "")


def simulate(
    config: RunConfig,
    folder: RunFolder,
    simulation: Simulation,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
) -> None:
    """Run, or continue, the run of a folder.

    Several simulations may run in threads of one process, each with the result that it has alone.

    Args:
        config: the run's settings.
        folder: its folder; from a checkpoint in it the run continues (clients then have forgotten what they knew).
        simulation: how.
        on_round: told of each round.

    Raises:
        ConfigError: for settings that do not fit, or another number of threads than that of a simulation that is
            running in this process.
    """
    # No client is late in one process, however long a round takes.
    settings = config.model_copy(
        update={"out": str(folder.path), "resume": True, "round_timeout": _DAY, "start_timeout": _DAY}
    )
    with torch_threads(simulation.threads) as threads:
        device, cache = pick_device(simulation.device), Cache()
        mode, _ = choose_mode(config, simulation, cache)
        clients = config.clients + config.unseen_clients
        task = _task(config, simulation, cache)
        pool = Pool(task, clients, device)
        node: dict[str, Scalar] = {
            "num-partitions": clients,
            "data-dir": simulation.data_dir,
            "device": str(device),
            "allow": ",".join(packages_named(config)),
        }
        told = settings.as_config()

        def context(k: int) -> Context:
            return Context(RUN, FIRST_NODE + k, {"partition-id": k, **node}, RecordDict(), told)

        with evaluation_workers(threads if mode == "batched" else 1) as workers, frozen_objects():
            scheduler = BatchScheduler(pool, workers) if mode == "batched" else None
            app = client_app(Participants(scheduler, pool.client, cache))
            grid = InProcessGrid(app, clients, context, scheduler)
            run(grid, settings, _Watch(on_round), durable=False, task=task)


def _task(config: RunConfig, simulation: Simulation, cache: Cache) -> Task:
    """Return the task, as the virtual clients have it: the user who named the run's plug-ins allows them."""
    return cache.task(config.task_settings(), simulation.data_dir, Allowed.of(packages_named(config)))


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
