"""Read idx files, the format of MNIST and its kin, plain or gzipped.

Two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as a big-endian 32-bit
integer, then the values.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_UNSIGNED_BYTE = 8


def read(path: Path) -> NDArray[np.uint8]:
    """Return the array in an idx file of unsigned bytes (``.gz``: gzipped), read-only.

    Raises:
        ValueError: not such a file, truncated or too long; one line that names it.
        OSError: it cannot be read.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from None
    if len(data) < 4 or len(data) < 4 + 4 * data[3] or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE:
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    start = 4 + 4 * data[3]
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], dtype=">u4"))
    if len(data) - start != math.prod(shape):
        raise ValueError(f"{path} should hold {shape} bytes after its header of {start}; it holds {len(data)} in all")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
