"""The folder of runs that no program keeps."""

import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path


def dated_name(name: str) -> str:
    """Return a run's folder name: the time and the run's name."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{name}".replace(":", ".")


class TemporaryFolder:
    """A folder deleted with the last reference to this object, or with the process.

    Attributes:
        path: where a run, or the runs of a sweep, lie in it.
    """

    def __init__(self, name: str) -> None:
        """Make it; ``name``: what is run."""
        root = Path(tempfile.mkdtemp(prefix="fedappeal-"))
        self.path = root / dated_name(name)
        weakref.finalize(self, _delete, root, os.getpid())


def _delete(root: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child ends before its parent
        shutil.rmtree(root, ignore_errors=True)
