"""The checksum in a safetensors file's header, by which damage is noticed.

Format 2 of our files: two entries of the metadata, ``fedappeal-format`` and ``fedappeal-checksum``, a CRC-32 of the
arrays' bytes and one of the header, in which its own eight digits count as zeros. CRC-32 finds every error within 32
bits, so each damaged byte, and takes a quarter of blake2b's time; against a person who writes files it is no guard.
Format 1 had neither entry: such a file, and one of another program, is read unchecked.
"""

import re
import zlib
from pathlib import Path

FORMAT_KEY, FORMAT = "fedappeal-format", "2"
CHECKSUM_KEY = "fedappeal-checksum"
_NONE_YET = "00000000"
UNSEALED = {FORMAT_KEY: FORMAT, CHECKSUM_KEY: f"crc32 {_NONE_YET} {_NONE_YET}"}
"""The metadata with which a file is written, before `seal` puts the checksum in."""

# Inside another entry's text the quotation marks would be escaped.
_FORMAT = re.compile(rf'"{FORMAT_KEY}":"([^"]*)"'.encode())
_CHECKSUM = re.compile(rf'"{CHECKSUM_KEY}":"crc32 ([0-9a-f]{{8}}) ([0-9a-f]{{8}})"'.encode())
_LENGTH = 8
_LONGEST_HEADER = 100_000_000
_BLOCK = 1 << 18


class Damaged(ValueError):
    """A file whose checksum is not that of its content; the message says what is wrong with it."""


def seal(path: Path) -> None:
    """Put the checksum into a file that was written with `UNSEALED`."""
    head = _head(path)
    checksum = _CHECKSUM.search(head)
    assert checksum is not None
    of_arrays = _crc_of_arrays(path, len(head))
    head = head[: checksum.start(1)] + of_arrays + head[checksum.end(1) :]
    of_head = _crc(zlib.crc32(head))
    with open(path, "r+b") as file:
        file.seek(checksum.start(1))
        file.write(of_arrays + b" " + of_head)


def check(path: Path, arrays: bool = True) -> None:
    """Check a safetensors file against the checksum in it, where it has one.

    Args:
        path: the file.
        arrays: whether all is checked; else the header alone, which has names, shapes and scalars.

    Raises:
        Damaged: it does not match.
    """
    head = _head(path)
    version, checksum = _FORMAT.search(head), _CHECKSUM.search(head)
    if version is None and checksum is None:
        return
    if version is not None and version[1] != FORMAT.encode():
        raise Damaged("its header is damaged, or a later version of fedappeal wrote it")
    if version is None or checksum is None:
        raise Damaged("its header is damaged")
    if _crc(zlib.crc32(head[: checksum.start(2)] + _NONE_YET.encode() + head[checksum.end(2) :])) != checksum[2]:
        raise Damaged("its header does not match its checksum")
    if arrays and _crc_of_arrays(path, len(head)) != checksum[1]:
        raise Damaged("its arrays do not match their checksum")


def _head(path: Path) -> bytes:
    """Return a file's header with the length before it; what is no header, safetensors refuses."""
    with open(path, "rb") as file:
        length = file.read(_LENGTH)
        return length + file.read(min(int.from_bytes(length, "little"), _LONGEST_HEADER))


def _crc_of_arrays(path: Path, start: int) -> bytes:
    checksum, block = 0, bytearray(_BLOCK)
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size := file.readinto(block):
            checksum = zlib.crc32(memoryview(block)[:size], checksum)
    return _crc(checksum)


def _crc(checksum: int) -> bytes:
    return b"%08x" % checksum
