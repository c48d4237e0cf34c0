"""Picklable jobs over a Ray cluster, each where there is room for it."""

from collections.abc import Callable, Sequence
from typing import Any

from fedappeal.protocol.foreign_text import one_line
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.jobs import POLL, reason_of, share_threads
from fedappeal.simulation.workers.cluster import RayOptions, check_ray, ray_cluster


def run_on_ray(
    jobs: Sequence[Callable[[], None]],
    options: RayOptions,
    on_end: Callable[[int, str], None],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run picklable jobs on a cluster's nodes; one that fails does not stop the others, and is not run again.

    What a job writes has to be in a folder that all nodes share.

    Args:
        jobs: what is to be done; picklable.
        options: the cluster, and what each job asks of it.
        on_end: told the number of each job when it is over, and why it failed: an empty reason where it did not.
        tick: called a few times a second, for a progress bar.

    Raises:
        ConfigError: the cluster cannot be reached, or has no room for a single job.
    """
    with ray_cluster(options, 1) as ray:
        task = ray.remote(_done).options(
            num_cpus=options.cpus, num_gpus=options.gpus, max_retries=0, scheduling_strategy="SPREAD"
        )
        running = {task.remote(job): number for number, job in enumerate(jobs)}
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=POLL)
                for reference in done:
                    on_end(running.pop(reference), _reason(ray, reference))
                tick()
        except BaseException:
            for reference in running:
                ray.cancel(reference, force=True)
            raise


def check_on_ray(options: RayOptions, at_once: int) -> None:
    """Check that several runs can be done on a cluster, where one is asked for.

    Args:
        options: the cluster.
        at_once: runs at once on this machine.

    Raises:
        ConfigError: Ray is not installed, or two things say how many runs there are at once.
    """
    if options.address:
        check_ray()
        if at_once != 1:
            raise ConfigError(f"jobs = {at_once} is not allowed with --ray: as many runs at once as have room there")


def threads_of_each(threads: int, at_once: int, options: RayOptions) -> int:
    """Return the PyTorch threads of each run: the number given, or its CPUs, or its share of the cores."""
    if options.address:
        return threads or max(1, int(options.cpus))
    return share_threads(threads, at_once)


def _done(job: Callable[[], None]) -> None:
    job()


def _reason(ray: Any, reference: Any) -> str:
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return reason_of(error.cause)
    except ray.exceptions.RayError as error:
        return f"its process or node ended without a word: {one_line(error)[:200]}"
    return ""
