"""A run's clients on workers: starts them, and ends them with the run."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fedappeal.record.folder import RunFolder
from fedappeal.simulation.clients import Contexts
from fedappeal.simulation.workers.cluster import RayOptions, RayWorker, check_workers, ray_cluster, room_for
from fedappeal.simulation.workers.crew import Crew, Remote
from fedappeal.simulation.workers.grid import WorkersGrid
from fedappeal.simulation.workers.worker import EngineWorker, WorkerJob
from server.build import Chosen

LOST_WORKER = "worker-lost"
"""Event of a run's folder."""


@contextmanager
def clients_on_workers(
    contexts: Contexts, mode: str, threads: int, workers: int, options: RayOptions, folder: RunFolder
) -> Iterator[WorkersGrid]:
    """Run with virtual clients on Ray actors.

    Args:
        contexts: makes theirs.
        mode: how clients train: ``layers``, ``vmap`` or ``sequential``.
        threads: PyTorch threads of a worker; 0: its CPUs.
        workers: their number; 0: one a node of the cluster.
        options: the cluster, and what each worker asks of it.
        folder: the run's, which is told of lost workers.

    Raises:
        ConfigError: Ray cannot be used, or has less than is asked for; what a worker finds wrong with the settings.
    """
    plugins = contexts.plugins
    check_workers(workers, plugins.config)
    path = () if options.address else tuple(sys.path)
    threads = threads or max(1, int(options.cpus))
    job = WorkerJob(
        *(plugins.config, plugins.given, mode, contexts.device, contexts.data_dir, threads),
        keeps=sums_suffice(plugins),
        path=path,
    )
    with ExitStack() as stack:
        ray = stack.enter_context(ray_cluster(options, workers))
        number = min(workers or sum(bool(node["Alive"]) for node in ray.nodes()), contexts.clients)
        room = stack.enter_context(room_for(ray, number, options))
        actor = ray.remote(num_cpus=options.cpus, num_gpus=options.gpus, max_restarts=0)(EngineWorker)
        made: dict[int, Remote] = {
            k: RayWorker(ray, actor.options(scheduling_strategy=place).remote(job)) for k, place in enumerate(room)
        }

        def told(worker: int, clients: int, reason: str) -> None:
            folder.event(LOST_WORKER, worker=worker, clients=clients, reason=reason)

        crew = Crew(made, contexts.clients, told)
        try:
            crew.start()
            yield WorkersGrid(crew, contexts.of)
        finally:
            crew.end()


def sums_suffice(plugins: Chosen) -> bool:
    """Return whether models may stay where they are trained: no strategy, median or bound needs single ones."""
    config = plugins.config
    return plugins.strategy.only_sums and (config.aggregation, config.influence) == ("mean", "off")
