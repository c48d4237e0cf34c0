"""How a process loads, waits and frees: imports, OpenMP's threads, and memory that goes back to the system."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType

_MMAP_THRESHOLD = -3
"""glibc's number of the setting (``malloc.h``)."""
LARGE = 1 << 20
"""Bytes from which a block is mapped alone; smaller than a chunk of a model (5 MiB)."""


def return_freed_memory() -> None:
    """Have freed large blocks returned to the system (Linux with glibc).

    By itself glibc maps fewer and fewer blocks alone (a freed one raises the limit, up to 32 MiB) and keeps those of
    each thread's heap: of a model that came in chunks, over several threads, as much again.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE)


def give_back_memory() -> None:
    """Collect garbage, and return free memory to the system.

    The latter on Linux with glibc alone.
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def sleep_while_waiting() -> None:
    """Have OpenMP's waiting threads sleep, unless the environment says otherwise.

    By default they spin, and where other programs want the cores, each waits at the end of every product for one that
    is not running: several times the CPU of one thread. OpenMP reads this once, when PyTorch is loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Disable the garbage collector during the block's imports.

    PyTorch takes a sixth less time so.

    The collector never looks at what is loaded here, nor writes to it: processes that are forked later share it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_beside(stand_ins: Mapping[str, Mapping[str, object]], *modules: str) -> None:
    """Import modules with stand-ins for others that are not loaded.

    The stand-ins have a few names alone.
    """
    replaced = [name for name in stand_ins if name not in sys.modules]
    for name in replaced:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(stand_ins[name])
    try:
        for module in modules:
            import_module(module)
    finally:
        for name in replaced:
            del sys.modules[name]


def import_torch_without_compiler() -> None:
    """Import PyTorch without its compiler's operators, a fifth of the time.

    For fedappeal's own tasks.

    Code that compiles, or calculates with tensors without data, imports ``torch._meta_registrations`` first.
    """
    import_beside({"torch._meta_registrations": {}}, "torch")
