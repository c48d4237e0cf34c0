"""Picklable jobs in parallel, one spawned process each, or on a Ray cluster."""

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from fedappeal.core.places import reason
from fedappeal.protocol.foreign_text import one_line
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.workers.cluster import RayOptions, check_ray, ray_cluster

POLL = 0.25
"""Seconds between two looks at the processes."""

LOST = "its process ended without a word (out of memory?)"


def check_at_once(at_once: int) -> None:
    """Check the number of parallel jobs.

    Raises:
        ConfigError: fewer than one.
    """
    if not isinstance(at_once, int) or at_once < 1:
        raise ConfigError(f"jobs = {at_once!r} is not allowed: at least 1")


def run_in_parallel(
    jobs: Sequence[Callable[[], None]],
    at_once: int,
    on_end: Callable[[int, str], None],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run picklable jobs in spawned processes; a failed one stops no other.

    A forked process would not do: torch's threads do not survive a fork.

    Args:
        jobs: what is to be done; picklable.
        at_once: number of processes.
        on_end: told the number of each job when it is over, and why it failed: an empty reason where it did not.
        tick: called a few times a second, for a progress bar.

    Raises:
        ConfigError: the system has no semaphores for processes.
    """
    waiting = deque(range(len(jobs)))
    while waiting:  # again only where a process died and took the pool with it
        with _pool(min(at_once, len(waiting))) as pool:
            running: dict[Future[None], int] = {}
            broken = False
            while running or (waiting and not broken):
                while waiting and not broken and len(running) < at_once:
                    try:
                        future = pool.submit(jobs[waiting[0]])
                    except BrokenProcessPool:
                        broken = True
                    else:
                        running[future] = waiting.popleft()
                for future in wait(running, POLL, FIRST_COMPLETED).done:
                    error = future.exception()
                    broken = broken or isinstance(error, BrokenProcessPool)
                    on_end(running.pop(future), reason_of(error) if error else "")
                tick()


def reason_of(error: BaseException) -> str:
    """Return why a job failed, in one line."""
    if isinstance(error, BrokenProcessPool):
        return LOST
    return reason(error)


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    try:
        pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=end_with_parent)
    except OSError as error:
        raise ConfigError(f"several runs need semaphores (on Linux in /dev/shm): {error.strerror}") from None
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def end_with_parent() -> None:
    """Have this process end with its parent, however that ends."""

    def outlive_no_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=outlive_no_parent, daemon=True).start()


def run_on_ray(
    jobs: Sequence[Callable[[], None]],
    options: RayOptions,
    on_end: Callable[[int, str], None],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run picklable jobs on a Ray cluster; a failed one stops no other.

    It is not run again.

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
    """Return each run's PyTorch threads: as given, its CPUs, or its cores' share."""
    if options.address:
        return threads or max(1, int(options.cpus))
    return threads or max(1, (os.cpu_count() or 1) // at_once)


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
