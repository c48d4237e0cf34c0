"""Partitions kept on disk, because the library that draws them takes seconds to import.

They are files in ``$XDG_CACHE_HOME/fedappeal`` (``~/.cache/fedappeal``). A partition is a pure function, and its
file's name is a hash of all that it depends on, so it is never out of date; the folder can be deleted at any time.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedappeal.system.files import read_safetensors, write_safetensors
from fedappeal.system.versions import FEDAPPEAL, version_of
from fedappeal.tasks.arrays import Labels, Rows


def kept_rows(fingerprint: str, labels: Labels, draw: Callable[[], list[Rows]]) -> list[Rows]:
    """Return each client's rows, from an earlier draw or drawn and kept now.

    Args:
        fingerprint: the task's, which covers its partition settings.
        labels: the data set's labels, which a partition depends on too.
        draw: draws the partition; its exceptions are passed on.
    """
    path = _path(fingerprint, labels)
    if (present := _read(path)) is not None:
        return present
    with _waiting_for_others(path):
        if (present := _read(path)) is not None:
            return present
        rows = draw()
        flat, sizes = np.concatenate(rows), np.array([len(r) for r in rows], dtype=np.int64)
        # A device without a writable home draws again at its next start.
        with contextlib.suppress(OSError):
            write_safetensors(path, {"rows": flat, "sizes": sizes}, {"digest": _digest(flat, sizes)})
        return rows


def _read(path: Path) -> list[Rows] | None:
    """Return the kept rows, or None where the file is missing or damaged."""
    try:
        arrays, values = read_safetensors(path)
        flat, sizes = arrays["rows"], arrays["sizes"]
        if values["digest"] == _digest(flat, sizes):
            return list(np.split(flat, np.cumsum(sizes)[:-1]))
    except (KeyError, TypeError, ValueError):
        pass
    return None


@contextmanager
def _waiting_for_others(path: Path) -> Iterator[None]:
    """Lock the cache's folder where its file system can.

    So one of the clients that start together draws, and the others wait.
    """
    lock = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.parent, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _digest(*arrays: NDArray[np.generic]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _path(fingerprint: str, labels: Labels) -> Path:
    digest = hashlib.blake2b(labels.tobytes(), digest_size=8)
    digest.update(f"{fingerprint} {FEDAPPEAL} {version_of('flwr-datasets')}".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "fedappeal" / f"partition-{digest.hexdigest()}.safetensors"
