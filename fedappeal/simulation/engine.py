"""One simulated run: the project's ServerApp and ClientApp, with all clients in this process."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from flwr.app import Context, RecordDict

from client.app import client_app
from client.data.cache import Cache, pick_device
from client.participants import Participants
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from fedappeal.protocol.plugins import Allowed
from fedappeal.simulation.choice import AUTO, MODES, Choice, Problem, choose, form_of
from fedappeal.simulation.grid import FIRST_NODE, RUN, InProcessGrid
from fedappeal.simulation.pool import Pool
from fedappeal.simulation.process_wide import evaluation_workers, frozen_objects, torch_threads
from fedappeal.simulation.scheduler import BatchScheduler
from fedappeal.tasks.task import Task
from server.build import chosen, packages_named
from server.run import run
from server.run_folder import RunFolder
from strategies.rounds.hooks import Hooks, RoundRecord

_DAY = 86_400.0
MOST_CLIENTS = 32
"""Clients whose data are loaded, at most, for the question how all of them train."""


@dataclass(frozen=True)
class Simulation:
    """How a run is simulated.

    Attributes:
        mode: ``layers`` or ``vmap`` (clients train as one batch, in this form), ``batched`` (in either),
            ``sequential`` (one after another), or ``auto``.
        device: where data and models are.
        data_dir: folder with the data sets.
        threads: PyTorch threads; 0: as PyTorch has it.
        why: what made `choose_mode` take the mode, where it did; for the run's folder.
    """

    mode: str = AUTO
    device: str = "cpu"
    data_dir: str = ""
    threads: int = 0
    why: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode = '{self.mode}' is not allowed: {', '.join(MODES)}")
        if self.threads < 0:
            raise ConfigError(f"threads = {self.threads} is not allowed: 0 (as PyTorch has it) or more")


def choose_mode(
    config: RunConfig, simulation: Simulation, cache: Cache | None = None, pool: Pool | None = None
) -> Choice:
    """Return the mode of a run, ``layers``, ``vmap`` or ``sequential``, and why.

    Args:
        config: the run's settings.
        simulation: how it is simulated.
        cache: holds the task, for the simulation to use as well; None: one for this question.
        pool: the clients' data; None: those of some clients are loaded where they are needed.

    Raises:
        ConfigError: where a form was asked for and is not possible; names the layer or the rule.
    """
    cache, device = cache or Cache(), pick_device(simulation.device)
    task = _task(config, simulation, cache)

    def some_data() -> Pool:
        return pool or Pool(task, min(problem.at_once, MOST_CLIENTS), device)

    with torch_threads(simulation.threads):
        module = cache.scratch_model(task, config.seed, device)
        problem = Problem(config, task, module, chosen(config).rule, lru_cache(some_data))
        return choose(simulation.mode, problem)


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
        clients = config.clients + config.unseen_clients
        task = _task(config, simulation, cache)
        pool = Pool(task, clients, device)
        mode, why = choose_mode(config, simulation, cache, pool)
        form = form_of(mode, task, cache.scratch_model(task, config.seed, device))
        folder.event("training", mode=mode, why=why or simulation.why)
        node: dict[str, Scalar] = {
            "num-partitions": clients,
            "data-dir": simulation.data_dir,
            "device": str(device),
            "allow": ",".join(packages_named(config)),
        }
        told = settings.as_config()

        def context(k: int) -> Context:
            return Context(RUN, FIRST_NODE + k, {"partition-id": k, **node}, RecordDict(), told)

        with evaluation_workers(threads if form else 1) as workers, frozen_objects():
            scheduler = BatchScheduler(pool, form, workers) if form else None
            app = client_app(Participants(scheduler, pool.client, cache))
            run(InProcessGrid(app, clients, context, scheduler), settings, _Watch(on_round), durable=False)


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
