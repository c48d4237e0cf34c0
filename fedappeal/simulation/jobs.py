"""Picklable jobs in parallel, one spawned process each."""

import contextlib
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from fedappeal.settings.config import ConfigError

POLL = 0.25
"""Seconds between two looks at the processes."""

LOST = "its process ended without a word (out of memory?)"


def share_threads(threads: int, at_once: int) -> int:
    """Return the PyTorch threads of each process: the number given, or its share of the cores."""
    return threads or max(1, (os.cpu_count() or 1) // at_once)


def check_at_once(at_once: int) -> None:
    """Check how many jobs are to run at once.

    Raises:
        ConfigError: fewer than one.
    """
    if at_once < 1:
        raise ConfigError(f"jobs = {at_once} is not allowed: at least 1")


def run_in_parallel(
    jobs: Sequence[Callable[[], None]],
    at_once: int,
    on_end: Callable[[int, str], None],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run picklable jobs in parallel, one spawned process each; one that fails does not stop the others.

    A forked process would not do: torch's threads do not survive a fork.

    Args:
        jobs: what is to be done; picklable.
        at_once: number of processes.
        on_end: told the number of each job when it is over, and why it failed: an empty reason where it did not.
        tick: called a few times a second, for a progress bar.
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
                done = [future for future in running if future.done()]
                for future in done:
                    error = future.exception()
                    broken = broken or isinstance(error, BrokenProcessPool)
                    on_end(running.pop(future), reason_of(error) if error else "")
                tick()
                if not done:
                    time.sleep(POLL)


def reason_of(error: BaseException) -> str:
    """Return why a job failed, in one line."""
    if isinstance(error, BrokenProcessPool):
        return LOST
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) and text else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _end_with_parent() -> None:
    """Let this process end when its parent is gone, however that ended."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
