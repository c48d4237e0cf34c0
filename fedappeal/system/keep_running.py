"""A process beside this one that is started again where it ends by itself.

Its end never ends this one.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fedappeal.system import process_end

_LOOK = 0.25
"""Seconds between two looks at whether it runs."""
_END = 10.0
"""Seconds in which it has to end when told to."""
SHORTEST = 1.0
"""Seconds until it is started again; twice as many each time, at most `LONGEST`; as few where it ran for longer."""
LONGEST = 60.0


@contextmanager
def keep_running(
    command: Sequence[str], environment: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Run a process until the block, or this process, ends; restart it if needed.

    Args:
        command: its program and arguments.
        environment: what it is started with.
        say: told why it is started again.
    """
    ended = threading.Event()
    # No code of ours runs between fork and exec: this process may have threads by then.
    tied = [sys.executable, "-P", "-m", process_end.__name__, str(os.getpid()), *command]

    def keep() -> None:  # the kernel ends what a thread started with this thread
        wait = SHORTEST
        while True:
            process, began = subprocess.Popen(tied, env=environment), time.monotonic()
            while process.poll() is None and not ended.wait(_LOOK):
                pass
            wait = SHORTEST if time.monotonic() - began > LONGEST else wait
            if ended.wait(wait):
                return process_end.end_child(process, _END)
            say(f"it ended by itself (exit code {process.returncode}) and is started again")
            wait = min(LONGEST, 2 * wait)

    keeper = threading.Thread(target=keep, name="kept running")
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
