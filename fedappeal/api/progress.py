"""How far a run is: a bar in a terminal, one line that changes in a notebook, nothing elsewhere."""

import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from fedappeal.system.encodable import write_encodable
from fedappeal.views.terminal.progress import bars

Shown = Callable[[str, int, int], None]
"""Shows of something that so many rounds, of a total, are over."""


@contextmanager
def show_progress(quiet: bool) -> Iterator[Shown]:
    """Show progress inside the block, in the main thread alone.

    A screen has one line that changes.
    """
    seen = not quiet and threading.current_thread() is threading.main_thread()
    if seen and in_notebook():
        yield _notebook_line()
    elif seen and sys.stdout.isatty():
        write_encodable(sys.stdout)
        with bars(Console(highlight=False)) as progress:
            bar = progress.add_task("", total=None)
            yield lambda what, done, total: progress.update(bar, description=what, completed=done, total=total)
    else:
        yield lambda what, done, total: None


def in_notebook() -> bool:
    """Whether this Python is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _notebook_line() -> Shown:
    display = importlib.import_module("IPython.display").display  # only a notebook has it
    handle: Any = None

    def show(what: str, done: int, total: int) -> None:
        nonlocal handle
        text = {"text/plain": f"{what}: round {done} of {total}"}
        if handle is None:
            handle = display(text, raw=True, display_id=True)
        else:
            handle.update(text, raw=True)

    return show


if in_notebook():
    # The library that deals out data sets has bars of its own, and misses a package for them here.
    warnings.filterwarnings("ignore", message="IProgress not found")
