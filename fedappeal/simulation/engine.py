"""One simulated run: the project's ServerApp and ClientApp, clients in this process or with workers."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import FrameType

from flwr.app import ArrayRecord

from client.participant import Participant
from client.participation.behaviour import Device, Mixture, parts_of
from client.roster import Participants
from client.training.devices import pick_device
from client.training.models import BFLOAT16, arrays_of
from client.training.task_learner import TaskLearners
from fedappeal.record.folder import RunFolder
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.app_clients import app_clients
from fedappeal.simulation.evaluation import BFloat16Participant, Flips
from fedappeal.simulation.forms.choice import Choice, Problem, choose
from fedappeal.simulation.in_process_grid import FIRST_NODE, Contexts, VirtualClients, clients_here
from fedappeal.simulation.memory import SavedMemory
from fedappeal.simulation.options import SEQUENTIAL, Simulation
from fedappeal.simulation.own_models import stores_of_run
from fedappeal.simulation.pool import ClientsData, Pool, clients_data
from fedappeal.simulation.process_wide import freeze_more, simulation_threads
from fedappeal.simulation.workers.workers_grid import clients_on_workers
from fedappeal.system.process_end import signals_taken, terminals, write_nowhere
from fedappeal.tasks.flower_app import FlowerApp
from fedappeal.tasks.share import parts_of as parts_of_model
from fedappeal.tasks.share import share_of
from fedappeal.tasks.task import Task
from server.build import Objects, Plugins, run_plugins
from server.server_run import Evaluate, run
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Hooks, RoundRecord
from strategies.rounds.strategy import Strategy

COLUMN = "virtual_seconds"
"""In the history: the slowest joiner's time; 0 in a round without a joiner that has a `Device`."""


@dataclass
class VirtualClock:
    """Tells a round's virtual seconds.

    Attributes:
        mixture: the run's policies.
        seed: the run's.
        device: the behaviour, with its settings.
        training: the run's local training.
        size: bytes of what travels of the model.
        examples: training examples by client.
    """

    mixture: Mixture
    seed: int
    device: Device
    training: LocalTrainingSettings
    size: int
    examples: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_run(cls, plugins: Plugins, task: Task) -> "VirtualClock | None":
        """Return a run's virtual clock; None if no policy of it has a device."""
        if Device.name not in plugins.mixture.parts:
            return None
        config = plugins.config
        model = task.initial_model(config.seed)
        size = sum(array.nbytes for array in arrays_of(model, parts_of_model(model, share_of(task)).shared).values())
        device, training = Device(plugins.settings_of(Device)), config.training
        return cls(plugins.mixture, config.seed, device, training, size)

    def note(self, member: Member) -> None:
        """Remember how many examples a client has."""
        self.examples[member.client_id] = member.num_examples

    def seconds(self, record: RoundRecord) -> float:
        """Return the slowest joined client's time.

        The round does not wait for surplus ones.
        """
        joined = [client for client, what in record.decisions.items() if what in ("joined", "refused")]
        slow = [client for client in joined if Device.name in parts_of(self.mixture.of(self.seed, client))]
        return max(map(self._seconds_of, slow), default=0.0)

    def _seconds_of(self, client: str) -> float:
        steps = self.training.steps(self.examples.get(client, 0))
        return self.device.seconds(self.seed, client, steps, self.size)


_DAY = 86_400.0
MOST_CLIENTS = 32
"""Clients whose data are loaded, at most, for the question how all of them train."""


def choose_mode(
    plugins: Plugins,
    simulation: Simulation,
    task: Task,
    learners: TaskLearners | None = None,
    pool: ClientsData | None = None,
) -> Choice:
    """Return the mode of a run, ``layers``, ``vmap`` or ``sequential``, and why.

    Args:
        plugins: the run's settings and plug-ins.
        simulation: how it is simulated.
        task: the run's.
        learners: have its models; None: some for this question.
        pool: the clients' data; None: those of some clients are loaded where they are needed.

    Raises:
        ConfigError: where a form was asked for and is not possible; names the layer or the rule.
    """
    if isinstance(task, FlowerApp):
        return Choice(SEQUENTIAL, "the app itself trains")
    config, device = plugins.config, pick_device(simulation.device)
    learners = learners or TaskLearners()

    def some_data() -> ClientsData:
        return pool or Pool(task, range(min(config.resolved_clients_per_round, MOST_CLIENTS)), device)

    with simulation_threads(simulation.threads):
        module = learners.scratch_model(task, config.seed, device)
        problem = Problem(config, task, module, plugins.rule, lru_cache(some_data))
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
    on_model: Callable[[ArrayRecord], None] = lambda arrays: None,
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
        on_model: told of each round's model, as it travels, before ``on_round``.

    Raises:
        ConfigError: for settings that do not fit, or another number of threads than that of a simulation that is
            running in this process.
    """
    given = Objects(task, strategy)
    # No client is late in one process, however long a round takes.
    settings = given.named(config).model_copy(
        update={"out": str(folder.path), "resume": True}
        | dict.fromkeys(("round_timeout", "start_timeout", "start_after"), _DAY)
    )
    plugins = run_plugins(settings, given)
    run_task = plugins.load_task(simulation.data_dir)
    simulation = replace(simulation, device=str(pick_device(simulation.device)))
    flips = Flips()
    with (
        simulation_threads(simulation.threads) as threads,
        _clients(plugins, simulation, run_task, threads, folder, flips) as (grid, participants, taken),
    ):
        memory = SavedMemory(folder, grid, participants, settings.evaluate_every, run_task.metric, taken.resumable)
        with interrupts() as asked:
            watch = _Watch(on_round, on_model, asked, flips, VirtualClock.of_run(plugins, run_task))
            try:
                run(
                    *(grid, plugins, watch, False, memory),
                    task=run_task,
                    evaluate=evaluate,
                    runtime=taken.runtime(),
                    nodes=range(FIRST_NODE, FIRST_NODE + settings.clients),
                )
            except KeyboardInterrupt:
                folder.event("interrupted")
                raise


@contextmanager
def _clients(
    plugins: Plugins, simulation: Simulation, task: Task, threads: int, folder: RunFolder, flips: Flips
) -> Iterator[tuple[VirtualClients, Participants | None, Simulation]]:
    """Yield a run's grid, its clients in this process, and their way to train."""
    if isinstance(task, FlowerApp):
        yield app_clients(task, plugins.config, folder), None, replace(simulation, mode=SEQUENTIAL)
        return
    store = stores_of_run(folder.path, plugins.config.clients + plugins.config.unseen_clients)
    contexts = Contexts(plugins, simulation.data_dir, simulation.device, store)
    device = pick_device(simulation.device)
    pool = None if simulation.shared_out else clients_data(plugins.config, task, contexts.clients, device)
    learners = TaskLearners(task=task, strategy_of=plugins.given.strategy_of)
    mode, why = choose_mode(plugins, simulation, task, learners, pool)
    threads_here = simulation.threads if simulation.shared_out else threads
    taken = replace(simulation, mode=mode, threads=threads_here, why=why or simulation.why)
    if pool is not None:
        kind = partial(BFloat16Participant, flips) if simulation.evaluation_precision == BFLOAT16 else Participant
        with clients_here(contexts, pool, learners, mode, threads, kind) as (grid, participants):
            yield grid, participants, taken
        return
    with clients_on_workers(contexts, taken, folder) as shared_out:
        yield shared_out, None, taken


class Interrupts:
    """Whether the run was asked to end, and whether it may end now.

    A second request ends it at once: it then continues from its last checkpoint.

    Attributes:
        finished: the last round that is over.
        saved: the last round whose checkpoint is on the disk.
        asked: the signal that asked; 0: none has.
    """

    def __init__(self) -> None:
        self.finished = self.saved = self.asked = 0
        self._terminals = terminals()

    def check(self) -> None:
        """End the run where it was asked to; to be called between rounds.

        Raises:
            KeyboardInterrupt: it was.
        """
        if self.asked:
            raise KeyboardInterrupt

    def ask(self, signum: int, frame: FrameType | None = None) -> None:
        """Take a signal.

        Raises:
            KeyboardInterrupt: no finished round is lost by it, or it is the second.
        """
        if signum == signal.SIGHUP:
            write_nowhere(self._terminals)
        again, self.asked = bool(self.asked), signum
        if again or self.saved >= self.finished:
            raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take Ctrl-C, SIGTERM and SIGHUP inside the block (`signals_taken`).

    The last two end the process by what took them before, once the run has been left.
    """
    asked = Interrupts()
    try:
        with signals_taken((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), asked.ask):
            yield asked
    finally:
        if asked.asked in (signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(asked.asked)
    asked.check()  # asked after the last round: the run is whole, and its caller is told


@dataclass
class _Watch(Hooks):
    on_round: Callable[[RoundRecord], None]
    on_model: Callable[[ArrayRecord], None]
    asked: Interrupts
    flips: Flips
    clock: VirtualClock | None
    begun: bool = False

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        if self.clock is not None:
            self.clock.note(member)

    def on_refused(self, node_id: int, reason: str) -> None:
        """End the run: a client of this program does not fit it.

        None comes in its place.
        """
        raise ConfigError(f"client {node_id - FIRST_NODE} declined: {reason}")

    def on_round_start(self, server_round: int) -> None:
        self.asked.check()
        if not self.begun:  # all clients have answered the roll call: what belongs to them stays
            freeze_more()
        self.begun = True

    def on_checkpoint(self, server_round: int) -> None:
        self.asked.saved = server_round

    def on_round_over(self, record: RoundRecord) -> None:
        self.asked.finished = record.server_round  # before its checkpoint: a signal waits for that
        record.metrics |= self.flips.taken()
        if self.clock is not None:
            record.metrics[COLUMN] = self.clock.seconds(record)

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self.on_model(arrays)
        self.on_round(record)
        self.asked.check()


def quiet() -> None:
    """Leave the round loop's log to the run's folder and the progress bar."""
    logging.getLogger("fedappeal").setLevel(logging.WARNING)
