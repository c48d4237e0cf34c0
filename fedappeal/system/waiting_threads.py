"""How the threads of PyTorch's products wait for their next piece of work."""

import os


def sleep_while_waiting() -> None:
    """Have OpenMP's threads sleep while they wait, unless the environment says otherwise.

    By default they spin, and where other programs want the cores, each waits at the end of every product for one that
    is not running: several times the CPU of one thread. OpenMP reads this once, when PyTorch is loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
