"""State of the process that a simulation changes, and puts back.

Threads of PyTorch and BLAS, and the collector's thresholds.

Simulations may run in several threads of one process. PyTorch keeps its number of threads twice: for each thread of
Python, and for the process, from which threads that begin later take it.
"""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import Barrier, Lock, Thread

import torch
from threadpoolctl import ThreadpoolController

from fedappeal.settings.config import ConfigError

_CHANGING = Lock()
"""Held while one of the lists below, or a setting of the process, is changed."""
_running: list[int] = []
"""The number of threads of each simulation that is running; all are equal."""
_forked: list[bool] = []
"""One entry in a process that was forked after torch had calculated."""
_blas = ExitStack()
"""Puts BLAS's threads back, once no simulation is running."""
_freezing: list[int] = []
"""One entry for each simulation that is running and has frozen objects."""
_frozen_elsewhere: list[bool] = []
"""One entry once a caller's frozen objects were seen: to ask costs a tenth of a second where there are millions."""
_thresholds: list[tuple[int, int, int]] = []
"""The collector's, as the first of these simulations found them."""
YOUNG_OBJECTS = 50_000
"""New objects after which the collector looks at them; Python's own number is 700 to 2,000.

What messages and records of many clients are made of lives until its round is over: looked at so often, it took a
sixth of the start of 100,000 clients.
"""


@cache
def survive_fork() -> None:
    """Set later forked processes to one thread.

    A fork copies no threads but its own. GNU's OpenMP waits for those that it had, without end.
    """
    os.register_at_fork(after_in_child=_begin_forked)


def _begin_forked() -> None:
    torch.set_num_threads(1)
    _running.clear()  # the simulations are the parent's
    _forked.append(True)


@contextmanager
def simulation_threads(wanted: int) -> Iterator[int]:
    """Set the threads of PyTorch and of NumPy's BLAS during the block.

    BLAS splits a dot product of 10,000 numbers over all cores by itself: its threads wait for each other, and where
    other programs run, one product took fifty times the processor time. Sums also depend on the number of threads.

    Args:
        wanted: the number; 0: as PyTorch has it.

    Yields:
        The number.

    Raises:
        ConfigError: where a simulation with another number is running in this process, or with several threads
            where this process was forked after another simulation.
    """
    survive_fork()
    with _CHANGING:
        before = torch.get_num_threads()
        number = _checked_threads(wanted)
        if wanted:
            _leave_later_threads_alone(lambda: torch.set_num_threads(number))
            if not _running:
                _blas.enter_context(ThreadpoolController().select(user_api="blas").limit(limits=number))
        _running.append(number)
    try:
        yield number
    finally:
        with _CHANGING:
            _running.remove(number)
            if wanted:
                _leave_later_threads_alone(lambda: torch.set_num_threads(before))
            if not _running:
                _blas.close()


def check_threads(wanted: int) -> None:
    """Check that a simulation could begin now; arguments and errors as `simulation_threads`."""
    with _CHANGING:
        _checked_threads(wanted)


def _checked_threads(wanted: int) -> int:
    """Return the number of threads, 0 as PyTorch has it."""
    before = torch.get_num_threads()
    number = wanted or before
    if _forked and number > 1:
        raise ConfigError(
            f"threads = {number} is not allowed in a process that was forked after a simulation: PyTorch would "
            "wait for threads that the fork did not copy; 1, or start the process by multiprocessing's 'spawn'"
        )
    if _running and number != _running[0]:
        shown = f"{wanted}" if wanted else f"0 ({before} here)"
        raise ConfigError(
            f"threads = {shown} is not allowed: {_running[0]}, as another simulation of this process has it"
        )
    return number


@contextmanager
def single_threaded_workers(threads: int) -> Iterator[ThreadPoolExecutor | None]:
    """Yield a pool of one-threaded workers; None if PyTorch has one thread.

    There are as many as PyTorch's threads.

    Several threads for one product wait for each other at its end: where other programs run too, two take longer
    than one.
    """
    if threads == 1:
        yield None
        return
    started = Barrier(threads + 1)

    def begin() -> None:
        torch.get_num_threads()  # a thread's first question sets it to the process's number
        torch.set_num_threads(1)
        started.wait()

    workers = ThreadPoolExecutor(threads, "one-thread", begin)

    def start() -> None:
        for _ in range(threads):
            workers.submit(int)
        started.wait()

    with _CHANGING:
        _leave_later_threads_alone(start)
    with workers:
        yield workers


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Freeze existing objects (gc.freeze), and raise the collection threshold, during the block.

    Objects that the caller has frozen stay frozen, and a collector that the caller has set stays as it is: Python
    unfreezes all objects or none. A process in which a caller has frozen objects counts as such from then on.
    """
    with _CHANGING:
        if not _freezing and not _frozen_elsewhere and gc.get_freeze_count():  # which walks through all of them
            _frozen_elsewhere.append(True)
        mine = not _frozen_elsewhere
        if mine:
            if not _freezing:
                _thresholds.append(gc.get_threshold())
                young, middle, old = _thresholds[0]
                gc.set_threshold(young and max(young, YOUNG_OBJECTS), middle, old)  # 0: the collector is off
            _freezing.append(1)
            gc.freeze()
    try:
        yield
    finally:
        with _CHANGING:
            if mine:
                _freezing.pop()
                if not _freezing:
                    gc.set_threshold(*_thresholds.pop())
                    gc.unfreeze()  # else a process that runs many would keep what belonged to each


def freeze_more() -> None:
    """Freeze the objects made since, inside a block of `frozen_objects`."""
    with _CHANGING:
        if _freezing:
            gc.freeze()


def _leave_later_threads_alone(change: Callable[[], None]) -> None:
    """Change a thread's own number of threads, without effect on later threads."""
    numbers: list[int] = []
    _in_a_thread(lambda: numbers.append(torch.get_num_threads()))
    change()
    _in_a_thread(lambda: torch.set_num_threads(numbers[0]))


def _in_a_thread(work: Callable[[], None]) -> None:
    thread = Thread(target=work)
    thread.start()
    thread.join()
