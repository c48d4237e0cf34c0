"""The launcher of simulations.

One run in this process, or several in processes beside it or on a Ray cluster.
"""

import contextlib
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedappeal.record.folder import Usable, runtime_of
from fedappeal.record.reader import Record, rounds_done
from fedappeal.runs.checks import check_device, check_learns_here, check_out
from fedappeal.runs.launch.observers import Observers, RunUnfinished, resumable
from fedappeal.runs.plan import RunPlan, simulate_plan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.jobs import check_at_once, check_on_ray, run_in_parallel, run_on_ray, threads_of_each
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.workers.cluster import NO_CLUSTER, RayOptions, WorkerLost, check_workers, ray_cluster
from fedappeal.system.process_end import end_as_interrupt

_ANY_SEED = {"seed": 0, "data_seed": 0}
"""Runs that differ in their seeds alone are checked once, and train alike."""
_KEPT = "all finished rounds are kept"


@dataclass(frozen=True)
class Machine:
    """The means by which several jobs are done.

    Attributes:
        at_once: jobs at once, each in a process of its own.
        threads: PyTorch threads a job; 0: the cores shared out.
        device: where data and models are.
        data_dir: folder of the data sets.
        ray: the Ray cluster that has the jobs; without an address: none.
    """

    at_once: int = 1
    threads: int = 0
    device: str = "cpu"
    data_dir: str = ""
    ray: RayOptions = NO_CLUSTER

    def __post_init__(self) -> None:
        check_at_once(self.at_once)

    def for_jobs(self, jobs: int) -> "Machine":
        """Return the means for this number of jobs, with the threads of each job.

        Raises:
            ConfigError: Ray is not installed, or two things say how many jobs there are at once.
        """
        at_once = min(self.at_once, jobs)
        check_on_ray(self.ray, at_once)
        return replace(self, at_once=at_once, threads=threads_of_each(self.threads, at_once, self.ray))

    def do(
        self,
        jobs: Sequence[Callable[[], None]],
        on_end: Callable[[int, str], None],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Do picklable jobs in parallel (`fedappeal.simulation.jobs.run_in_parallel`)."""
        if self.ray.address:
            run_on_ray(jobs, self.ray, on_end, tick)
        else:
            run_in_parallel(jobs, self.at_once, on_end, tick)


def simulate_quietly(plan: RunPlan, simulation: Simulation) -> None:
    """Simulate one run of several, without a word on the screen."""
    from fedappeal.simulation.engine import quiet

    quiet()
    try:
        simulate_plan(plan, simulation)
    finally:
        # An author's model or data may be in a cycle: few objects, by whose number Python looks for them late.
        gc.collect()


def memory_of(path: Path) -> Usable:
    """Return the check that a simulation's clients' memory can be read beside a checkpoint."""

    def usable(server_round: int) -> None:
        from fedappeal.simulation.memory import read_memory

        read_memory(path, server_round)

    return usable


@dataclass(frozen=True)
class InProcess:
    """A launcher of simulations: one in this process, several in their own.

    A lone run's clients may be on workers.

    Attributes:
        simulation: how each run is simulated.
        machine: how many runs are done at once, and the Ray cluster that has them, or the clients of a lone run.
        workers: processes that have a lone run's clients; 0: this one, or one a node of the cluster.
    """

    simulation: Simulation
    machine: Machine = Machine()
    workers: int = 0

    def check(self, plans: Sequence[RunPlan]) -> "InProcess":
        """Return the launcher for these runs, checked as far as possible beforehand.

        Raises:
            ConfigError: for the first thing that is wrong.
        """
        ray, simulation, machine = self.machine.ray, self.simulation, self.machine
        if len(plans) == 1 and (self.workers or ray.address):
            check_workers(self.workers, plans[0].config, ray)
            if not ray.address and (ray.cpus, ray.gpus) != (NO_CLUSTER.cpus, NO_CLUSTER.gpus):
                raise ConfigError("ray-cpus and ray-gpus are not allowed with workers of this machine: --ray ADDRESS")
            simulation = replace(
                simulation, workers=self.workers, ray=ray.address, ray_cpus=ray.cpus, ray_gpus=ray.gpus
            )
        else:
            if self.workers:
                raise ConfigError(
                    f"workers = {self.workers} is not allowed with several runs: --jobs, or --ray ADDRESS"
                )
            machine = replace(machine, threads=simulation.threads).for_jobs(len(plans))
            simulation = replace(simulation, threads=machine.threads)
        if len(plans) > 1 or not plans[0].resumes:
            check_out(plans[0].path if len(plans) == 1 else plans[0].path.parent)
        tried = set[RunConfig]()
        for plan in plans:
            settings = plan.config.model_copy(update=_ANY_SEED)
            check_learns_here(plan, simulation.device, settings not in tried)
            tried.add(settings)
        return replace(self, simulation=simulation, machine=machine)

    def launch(self, plans: Sequence[RunPlan], observers: Observers) -> None:
        """Simulate runs whose launcher was checked, and show how far they are; those that have begun continue.

        Raises:
            ConfigError: the cluster cannot be reached, or has no room.
            RunUnfinished: some did not finish.
        """
        ray = self.machine.ray
        # Before anything is shown or written: a cluster that cannot be reached is found here.
        with ray_cluster(ray, max(self.workers, 1)) if ray.address else contextlib.nullcontext():
            simulations = self._in_their_modes(plans, observers)
            for plan in plans:
                if plan.resumes:
                    plan.mend(observers.complain, memory_of(plan.path))
            with resumable(plans, _KEPT, WorkerLost), end_as_interrupt():
                if len(plans) == 1:
                    _simulate_shown(plans[0], simulations[0], observers)
                else:
                    self._simulate_several(plans, simulations, observers)

    def resume(self, plan: RunPlan, observers: Observers, usable: Usable) -> None:
        """Continue a checked run, and show it; ``usable``: as in `server.checkpoints.newest_usable`.

        Raises:
            RunUnfinished: it did not finish.
        """
        plan.mend(observers.complain, usable)
        for line in self.simulation.notes():
            observers.say(line)
        with resumable([plan], _KEPT, WorkerLost), end_as_interrupt():
            _simulate_shown(plan, self.simulation, observers)

    def _in_their_modes(self, plans: Sequence[RunPlan], observers: Observers) -> list[Simulation]:
        """Return each run's simulation, in the mode that was announced for it.

        Another measurement may differ.
        """
        from fedappeal.simulation.engine import choose_mode

        trainings = [_training(plan) for plan in plans]
        choices = {
            training: choose_mode(plan.plugins, self.simulation, plan.task)
            for training, plan in dict(zip(trainings, plans, strict=True)).items()
        }
        for line in dict.fromkeys(f"{key[0]}: clients train {choices[key]}" for key in trainings):
            observers.say(line)
        for line in self.simulation.notes():
            observers.say(line)
        simulations = [replace(self.simulation, mode=choices[key].mode, why=choices[key].why) for key in trainings]
        return [
            _as_it_began(plan.path, how) if plan.resumes else how
            for plan, how in zip(plans, simulations, strict=True)
        ]

    def _simulate_several(
        self, plans: Sequence[RunPlan], simulations: Sequence[Simulation], observers: Observers
    ) -> None:
        failed: list[str] = []
        with observers.several(plans) as watching:

            def ended(number: int, reason: str) -> None:
                if reason:
                    failed.append(f"{plans[number].name}: {reason}")
                for observer in watching:
                    observer.ended(number, reason)

            def tick() -> None:
                for observer in watching:
                    observer.update()

            jobs = [partial(simulate_quietly, plan, how) for plan, how in zip(plans, simulations, strict=True)]
            self.machine.do(jobs, ended, tick)
        if failed:
            raise RunUnfinished(*failed)


def _as_it_began(path: Path, how: Simulation) -> Simulation:
    began = Simulation.of_runtime(runtime_of(path))
    check_device(began.device)
    return replace(how, mode=began.mode, device=began.device, evaluation_precision=began.evaluation_precision)


def _simulate_shown(plan: RunPlan, simulation: Simulation, observers: Observers) -> None:
    screen = observers.screen(plan)
    screen.heading()
    if done := rounds_done(plan.path):
        observers.say(f"continued after round {done}")
    folder = plan.folder(simulation.runtime())
    with observers.watch(plan.path):
        with observers.rounds(screen, plan.name, done) as on_round:
            simulate_plan(
                plan,
                simulation,
                folder,
                on_round=lambda record: on_round({**record.as_line(), "decisions": record.decisions}),
            )
        screen.stop()
    screen.rounds = Record(plan.path).history
    screen.summary()


def _training(plan: RunPlan) -> tuple[object, ...]:
    """Return the settings that decide how clients train, the strategy first."""
    config, others = plan.config, {plugin.settings_name() for plugin in plan.plugins.plugins}
    of_task = tuple((key, value) for key, value in config.plugins if key.partition(".")[0] not in others)
    task = config.task_settings().model_copy(update={**_ANY_SEED, "plugins": of_task})
    return config.strategy, config.local_rule, task, config.batch_size, config.resolved_clients_per_round
