"""One simulated run: the project's ServerApp and ClientApp, clients in this process or with workers."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from client.data.cache import Cache, pick_device
from client.participant import Participant
from client.roster import Participants
from client.training.precision import BFLOAT16, FLOAT32, PRECISIONS
from fedappeal.core.plugins import Allowed
from fedappeal.record.folder import RunFolder
from fedappeal.record.resumption import KIND, SIMULATION
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.simulation.clients import Contexts, clients_here
from fedappeal.simulation.forms.choice import AUTO, MODES, Choice, Problem, choose
from fedappeal.simulation.grid import FIRST_NODE, VirtualClients
from fedappeal.simulation.interrupts import Interrupts, interrupts
from fedappeal.simulation.memory import SavedMemory
from fedappeal.simulation.pool import ClientsData, Pool, clients_data
from fedappeal.simulation.precision import BFloat16Participant, Flips, missing_bfloat16
from fedappeal.simulation.process_wide import freeze_more, torch_threads
from fedappeal.simulation.virtual_clock import COLUMN, VirtualClock
from fedappeal.simulation.workers.cluster import RayOptions
from fedappeal.tasks.task import Task
from server.build import chosen, packages_named
from server.given import NOTHING_GIVEN, Given
from server.run import Evaluate, run
from strategies.rounds.exchange.members import Member
from strategies.rounds.hooks import Hooks, RoundRecord
from strategies.rounds.strategy import Strategy

_DAY = 86_400.0
MOST_CLIENTS = 32
"""Clients whose data are loaded, at most, for the question how all of them train."""
_OF_WORKERS = ("workers", "ray", "ray_cpus", "ray_gpus")
"""What a run's folder records only where workers had its clients."""
_PRECISION = "evaluation-precision"
"""Missing in the folders of runs that began before there was a choice."""


@dataclass(frozen=True)
class Simulation:
    """How a run is simulated.

    Attributes:
        mode: ``layers`` or ``vmap`` (clients train as one batch, in this form), ``batched`` (in either),
            ``sequential`` (one after another), or ``auto``.
        device: where data and models are.
        data_dir: folder with the data sets.
        threads: PyTorch threads; 0: as PyTorch has it.
        resumable: whether what the clients remember is kept in the run's folder, so that the run can be continued.
        why: what made `choose_mode` take the mode, where it did; for the run's folder.
        workers: processes that have the clients; 0: this one, or one a node of a Ray cluster.
        ray: address of a Ray cluster that has the workers; empty: this machine.
        ray_cpus: CPUs that a worker asks of Ray; ``ray_gpus`` in the same way.
        evaluation_precision: in which clients evaluate the models that they are sent, ``float32`` or ``bfloat16``.
    """

    mode: str = AUTO
    device: str = "cpu"
    data_dir: str = ""
    threads: int = 0
    resumable: bool = True
    why: str = ""
    workers: int = 0
    ray: str = ""
    ray_cpus: float = 1.0
    ray_gpus: float = 0.0
    evaluation_precision: str = FLOAT32

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode = '{self.mode}' is not allowed: {', '.join(MODES)}")
        if self.threads < 0:
            raise ConfigError(f"threads = {self.threads} is not allowed: 0 (as PyTorch has it) or more")
        if self.evaluation_precision not in PRECISIONS:
            raise ConfigError(
                f"evaluation-precision = '{self.evaluation_precision}' is not allowed: {', '.join(PRECISIONS)}"
            )
        if self.evaluation_precision != FLOAT32 and self.shared_out:
            raise ConfigError(
                f"evaluation-precision = '{self.evaluation_precision}' is not allowed with workers: {FLOAT32}"
            )

    def notes(self) -> list[str]:
        """Return what a user should know of how the run is simulated."""
        in_bfloat16 = self.evaluation_precision == BFLOAT16
        note = missing_bfloat16(str(pick_device(self.device))) if in_bfloat16 else ""
        return [note] if note else []

    @property
    def shared_out(self) -> bool:
        """Whether workers have the clients."""
        return bool(self.workers or self.ray)

    @property
    def ray_options(self) -> RayOptions:
        """What is asked of Ray."""
        return RayOptions(self.ray, self.ray_cpus, self.ray_gpus)

    @classmethod
    def of_runtime(cls, runtime: Mapping[str, Any]) -> "Simulation":
        """Return how a run was simulated, from what its folder records.

        Raises:
            ConfigError: it lacks something, or holds something of another type.
        """
        found: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in _OF_WORKERS and not runtime.get("workers") and not runtime.get("ray"):
                continue
            key, kind = field.name.replace("_", "-"), type(field.default)
            if key == _PRECISION and key not in runtime:
                continue
            if type(found.setdefault(field.name, runtime.get(key))) is not kind:
                raise ConfigError(f"runtime: {key} = {runtime.get(key)!r} is not allowed: a value of {kind.__name__}")
        return cls(**found)

    def runtime(self) -> dict[str, Scalar]:
        """Return what a run's folder records of its runtime."""
        data_dir = str(Path(self.data_dir).absolute()) if self.data_dir else ""
        shared = {name.replace("_", "-"): getattr(self, name) for name in _OF_WORKERS} if self.shared_out else {}
        return {
            KIND: SIMULATION,
            "mode": self.mode,
            "device": self.device,
            "data-dir": data_dir,
            "threads": self.threads,
            "resumable": self.resumable,
            "why": self.why,
            **shared,
            _PRECISION: self.evaluation_precision,
        }


def choose_mode(
    config: RunConfig,
    simulation: Simulation,
    cache: Cache | None = None,
    pool: ClientsData | None = None,
    given: Given = NOTHING_GIVEN,
) -> Choice:
    """Return the mode of a run, ``layers``, ``vmap`` or ``sequential``, and why.

    Args:
        config: the run's settings.
        simulation: how it is simulated.
        cache: holds the task, for the simulation to use as well; None: one for this question.
        pool: the clients' data; None: those of some clients are loaded where they are needed.
        given: objects in place of names.

    Raises:
        ConfigError: where a form was asked for and is not possible; names the layer or the rule.
    """
    cache, device = cache or Cache(given.task), pick_device(simulation.device)
    task = _task(config, simulation, cache, given)

    def some_data() -> ClientsData:
        return pool or Pool(task, min(problem.at_once, MOST_CLIENTS), device)

    with torch_threads(simulation.threads):
        module = cache.scratch_model(task, config.seed, device)
        problem = Problem(config, task, module, chosen(config, given).rule, lru_cache(some_data))
        return choose(simulation.mode, problem)


def simulate(
    config: RunConfig,
    folder: RunFolder,
    simulation: Simulation,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
    *,
    task: Task | None = None,
    strategy: Strategy | None = None,
    evaluate: Evaluate | None = None,
) -> None:
    """Run, or continue, the run of a folder.

    Several simulations may run in threads of one process, each with the result that it has alone. Ctrl-C ends a run
    that can be continued: at once where no finished round is lost by it, else after the round. The folder then holds
    all rounds that are over, and KeyboardInterrupt is raised.

    Args:
        config: the run's settings.
        folder: its folder; from a checkpoint in it the run continues, with what its clients remember.
        simulation: how.
        on_round: told of each round.
        task: in place of the one that the settings name.
        strategy: the same; a template, which is copied.
        evaluate: evaluates each evaluated model on the server as well.

    Raises:
        ConfigError: for settings that do not fit, or another number of threads than that of a simulation that is
            running in this process.
    """
    given = Given(task, strategy)
    # No client is late in one process, however long a round takes.
    settings = given.named(config).model_copy(
        update={"out": str(folder.path), "resume": True}
        | dict.fromkeys(("round_timeout", "start_timeout", "start_after"), _DAY)
    )
    device, cache = pick_device(simulation.device), Cache(task, given.strategy_of)
    simulation = replace(simulation, device=str(device))
    flips = Flips()
    with (
        torch_threads(simulation.threads) as threads,
        _clients(settings, simulation, cache, given, threads, folder, flips) as (grid, participants, taken),
    ):
        memory = SavedMemory(folder, grid, participants, settings.evaluate_every) if simulation.resumable else None
        with interrupts() as asked:
            clock = VirtualClock.of_run(settings, chosen(settings, given), _task(settings, simulation, cache, given))
            watch = _Watch(on_round, asked, flips, clock)
            try:
                run(
                    *(grid, settings, watch, False, memory),
                    task=task,
                    strategy=strategy,
                    data_dir=Path(simulation.data_dir) if simulation.data_dir else None,
                    evaluate=evaluate,
                    runtime=taken.runtime(),
                    nodes=range(FIRST_NODE, FIRST_NODE + settings.clients),
                )
            except KeyboardInterrupt:
                folder.event("interrupted")
                raise


@contextmanager
def _clients(
    config: RunConfig,
    simulation: Simulation,
    cache: Cache,
    given: Given,
    threads: int,
    folder: RunFolder,
    flips: Flips,
) -> Iterator[tuple[VirtualClients, Participants | None, Simulation]]:
    """Run with a run's clients: the grid that reaches them, what this process has of them, and how they train."""
    contexts = Contexts(config, given, simulation.data_dir, simulation.device)
    task = _task(config, simulation, cache, given)
    device = pick_device(simulation.device)
    pool = None if simulation.shared_out else clients_data(config, task, contexts.clients, device)
    mode, why = choose_mode(config, simulation, cache, pool, given)
    threads_here = simulation.threads if simulation.shared_out else threads
    taken = replace(simulation, mode=mode, threads=threads_here, why=why or simulation.why)
    if pool is not None:
        kind = partial(BFloat16Participant, flips) if simulation.evaluation_precision == BFLOAT16 else Participant
        with clients_here(contexts, task, pool, cache, mode, threads, kind) as (grid, participants):
            yield grid, participants, taken
        return
    from fedappeal.simulation.workers import start

    with start.clients_on_workers(
        *(contexts, mode, simulation.threads, simulation.workers, simulation.ray_options, folder)
    ) as shared_out:
        yield shared_out, None, taken


def _task(config: RunConfig, simulation: Simulation, cache: Cache, given: Given) -> Task:
    """Return the task, as the virtual clients have it: the user who named the run's plug-ins allows them."""
    return cache.task(config.task_settings(), simulation.data_dir, Allowed.of(packages_named(config, given)))


class _Watch(Hooks):
    def __init__(
        self, on_round: Callable[[RoundRecord], None], asked: Interrupts, flips: Flips, clock: VirtualClock | None
    ) -> None:
        self._on_round = on_round
        self._asked = asked
        self._begun = False
        self._flips = flips
        self._clock = clock

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        if self._clock is not None:
            self._clock.note(member)

    def on_refused(self, node_id: int, reason: str) -> None:
        """All clients are this program: where one does not fit the run, none comes in its place."""
        raise ConfigError(f"client {node_id - FIRST_NODE} declined: {reason}")

    def on_round_start(self, server_round: int) -> None:
        self._asked.check()
        if not self._begun:  # all clients have answered the roll call: what belongs to them stays
            freeze_more()
        self._begun = True

    def on_checkpoint(self, server_round: int) -> None:
        self._asked.saved = server_round

    def on_round_over(self, record: RoundRecord) -> None:
        self._asked.finished = record.server_round  # before its checkpoint: a signal waits for that
        record.metrics |= self._flips.taken()
        if self._clock is not None:
            record.metrics[COLUMN] = self._clock.seconds(record)

    def on_round_end(self, record: RoundRecord, arrays: object) -> None:
        self._on_round(record)
        self._asked.check()


def quiet() -> None:
    """Leave the round loop's log to the run's folder and the progress bar."""
    logging.getLogger("fedappeal").setLevel(logging.WARNING)
