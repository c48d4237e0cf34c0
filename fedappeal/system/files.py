"""Files that are replaced all at once: safetensors with scalars beside the arrays, and plain bytes.

Format 2 of our safetensors has two entries of metadata, ``fedappeal-format`` and ``fedappeal-checksum``: a CRC-32 of
the arrays' bytes and one of the header, in which its own eight digits count as zeros. CRC-32 finds every error within
32 bits, so each damaged byte, and takes a quarter of blake2b's time; against a person who writes files it is none.
Format 1 had neither entry: such a file, and one of another program, is read unchecked.
"""

import errno
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import psutil
from safetensors import SafetensorError, safe_open

from fedappeal.protocol.foreign_text import parse_json
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.memory import memory_bytes
from fedappeal.system.plain_files import descriptor, open_plain

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
    """A file's checksum does not fit its content; the message says how."""


def seal(path: Path) -> None:
    """Put the checksum into a file that was written with `UNSEALED`."""
    with open(path, "r+b") as file:
        head = _head(file)
        checksum = _CHECKSUM.search(head)
        assert checksum is not None
        of_arrays = _crc_of_rest(file)
        head = head[: checksum.start(1)] + of_arrays + head[checksum.end(1) :]
        of_head = _crc(zlib.crc32(head))
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
    with open(path, "rb") as file:
        _check(file, arrays)


def _check(file: BufferedIOBase, arrays: bool) -> None:
    head = _head(file)
    version, checksum = _FORMAT.search(head), _CHECKSUM.search(head)
    if version is None and checksum is None:
        return
    if version is not None and version[1] != FORMAT.encode():
        raise Damaged("its header is damaged, or a later version of fedappeal wrote it")
    if version is None or checksum is None:
        raise Damaged("its header is damaged")
    if _crc(zlib.crc32(head[: checksum.start(2)] + _NONE_YET.encode() + head[checksum.end(2) :])) != checksum[2]:
        raise Damaged("its header does not match its checksum")
    if arrays and _crc_of_rest(file) != checksum[1]:
        raise Damaged("its arrays do not match their checksum")


def _head(file: BufferedIOBase) -> bytes:
    """Return a file's header with its length before it.

    What is no header, safetensors refuses.
    """
    length = file.read(_LENGTH)
    return length + file.read(min(int.from_bytes(length, "little"), _LONGEST_HEADER))


def _crc_of_rest(file: BufferedIOBase) -> bytes:
    checksum, block = 0, bytearray(_BLOCK)
    while size := file.readinto(block):
        checksum = zlib.crc32(memoryview(block)[:size], checksum)
    return _crc(checksum)


def _crc(checksum: int) -> bytes:
    return b"%08x" % checksum


if TYPE_CHECKING:  # NumPy is loaded where there are arrays
    import numpy as np
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.generic]"
_METADATA = "fedappeal"
CARD = "fedappeal-card"
"""A scalar of this name, a JSON text, is an entry of its own in the metadata, for other programs to read."""
DAMAGED = "damaged"
"""How the name of a file ends that was put aside."""
_UNFINISHED = re.compile(r"\..+\.([0-9]{1,9})(?:-[0-9a-f]+)?\.tmp|\.tmp[A-Za-z0-9]{6}")
"""Names of files that are being written: those of `replace_by`, and of safetensors, which writes beside them.

The group is the process that writes."""
_OS_ERROR = re.compile(r"\(os error ([0-9]{1,3})\)")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
MOST_ASIDE = 9
"""Damaged files of one name that are kept; then the last one is replaced."""


def read_safetensors(path: Path) -> tuple[dict[str, Array], dict[str, Scalar]]:
    """Return a safetensors file's arrays by name, and the scalars that `write_safetensors` put beside them.

    Raises:
        ConfigError: if the file is not there, cannot be read, or is damaged; one line that names it.
    """
    return _read(path, arrays=True)


def _read(path: Path, arrays: bool) -> tuple[dict[str, Array], dict[str, Scalar]]:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        if arrays:
            check_memory(path)
        while True:
            with open(path, "rb") as checked:
                _check(checked, arrays)
                with safe_open(path, framework="numpy") as file:
                    if os.path.samestat(os.fstat(checked.fileno()), path.stat()):  # else replaced meanwhile
                        return _content(file, arrays)
    except (OSError, SafetensorError, TypeError, ValueError, MemoryError) as error:  # TypeError: a dtype of others
        raise ConfigError(f"file '{path}' cannot be read: {str(error) or 'it needs too much memory'}") from None


def _content(file: Any, arrays: bool) -> tuple[dict[str, Array], dict[str, Scalar]]:
    metadata = file.metadata() or {}
    values = parse_json(metadata.get(_METADATA, "{}"))
    if not (isinstance(values, dict) and all(isinstance(value, Scalar) for value in values.values())):
        raise ValueError(f"its '{_METADATA}' is no JSON object of scalars")
    card = {CARD: metadata[CARD]} if CARD in metadata else {}
    return {key: file.get_tensor(key) for key in (file.keys() if arrays else ())}, values | card


def read_values(path: Path) -> dict[str, Scalar]:
    """Return the scalars of a safetensors file alone, its header checked; errors as in `read_safetensors`."""
    return _read(path, arrays=False)[1]


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return a safetensors file's shapes by array, from its header; errors as in `read_safetensors`."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"file '{path}' cannot be read: {error}") from None


def state_of(path: Path) -> os.stat_result | None:
    """Return a file's state; None where it has none: another process may have deleted it since it was listed."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return None


def check_memory(path: Path) -> None:
    """Check that a file and a copy of its arrays fit into memory.

    A file that takes a few KB on the disk may have holes of a terabyte.
    """
    size, memory = 2 * path.stat().st_size, memory_bytes()
    if size > memory:
        raise ValueError(f"it needs {size // 10**6:,} MB in memory: this machine has {memory // 10**6:,}")


def write_safetensors(
    path: Path,
    arrays: Mapping[str, Array],
    values: Mapping[str, Scalar],
    durable: bool = True,
    texts: Mapping[str, str] = MappingProxyType({}),
    mode: int = 0o666,
) -> None:
    """Write arrays and scalars as one safetensors file with a checksum, atomically.

    Args:
        path: the file; readers see its old content or its new content, never a part.
        arrays: named arrays.
        values: scalars, kept as JSON in the file's metadata.
        durable: whether to wait until the disk has it, so that a power cut cannot undo it.
        texts: further entries of the metadata, for other programs to read.
        mode: as in `replace_by`.
    """
    import numpy as np
    from safetensors.numpy import save_file

    scalars = {key: value for key, value in values.items() if key != CARD}
    card = {CARD: str(values[CARD])} if CARD in values else {}
    with replace_by(path, durable, mode) as temporary:  # straight into the file: a second copy could be gigabytes
        try:
            save_file(
                {k: np.asarray(a, order="C") for k, a in arrays.items()},
                temporary,
                {**texts, _METADATA: json.dumps(scalars), **card, **UNSEALED},
            )
            seal(temporary)
        except SafetensorError as error:  # a full disk
            number = _OS_ERROR.search(str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code) if number else str(error), str(path)) from None


def replace_file(path: Path, content: bytes, durable: bool = True, mode: int = 0o666) -> None:
    """Replace a file's content; arguments as in `replace_by`."""
    with replace_by(path, durable, mode) as temporary, open(temporary, "wb", opener=open_plain) as file:
        file.write(content)


@contextmanager
def replace_by(path: Path, durable: bool = True, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new file beside a file, which it then replaces atomically.

    Args:
        path: the file; where an error ends the writing, it is left as it was.
        durable: whether to wait until the disk has it (fsync of file and folder).
        mode: its permissions, without what the umask takes away, from the first byte on.

    Yields:
        The new file's path.

    Raises:
        OSError: it cannot be written; names the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")  # a process has threads
    with descriptor(path.parent) as folder:
        os.close(os.open(temporary.name, _NEW, mode, dir_fd=folder))
        try:
            permissions = stat.S_IMODE(os.stat(temporary.name, dir_fd=folder).st_mode)
            yield temporary
            number = open_plain(temporary, os.O_RDWR)
            try:
                os.fchmod(number, permissions)  # safetensors puts a file of its own there, for its owner alone
                if durable:
                    os.fsync(number)
            finally:
                os.close(number)
            os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException as error:
            with suppress(FileNotFoundError):
                os.unlink(temporary.name, dir_fd=folder)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)
            raise
        if durable:
            os.fsync(folder)


def aside_name(path: Path) -> Path:
    """Return the path for a damaged file: the first free one, else the last."""
    names = [DAMAGED, *(f"{DAMAGED}-{number}" for number in range(2, MOST_ASIDE + 1))]
    paths = [path.with_name(f"{path.name}.{name}") for name in names]
    return next((other for other in paths if not os.path.lexists(other)), paths[-1])


def copy_aside(path: Path) -> Path:
    """Copy a damaged file to its place of keeping; return that path."""
    aside = aside_name(path)
    with open(path, "rb", opener=open_plain) as damaged, replace_by(aside) as copy, open(copy, "wb") as file:
        shutil.copyfileobj(damaged, file)
    return aside


def set_aside(path: Path) -> Path:
    """Rename a damaged file; return its new path.

    Another one can then take its place.
    """
    aside = aside_name(path)
    os.replace(path, aside)
    return aside


def delete_unfinished(folder: Path) -> None:
    """Delete half-written files of killed processes; the caller holds the folder's lock.

    What a running process writes without that lock, such as a report, stays.
    """
    for file in folder.glob(".*"):
        name = _UNFINISHED.fullmatch(file.name)
        if name and file.is_file() and not (name[1] and _is_being_written(file, int(name[1]))):
            file.unlink(missing_ok=True)


def _is_being_written(file: Path, process: int) -> bool:
    with suppress(psutil.Error, FileNotFoundError):
        writer = psutil.Process(process)
        began = writer.create_time() <= file.stat().st_mtime  # else another had its number
        return bool(began and writer.status() != psutil.STATUS_ZOMBIE)
    return False


def path_of(name: str, given: Any) -> Path:
    """Return a path that a program gives.

    Args:
        name: of the argument.
        given: a text or a path.

    Raises:
        ConfigError: something else, or a text that no path can hold.
    """
    if not isinstance(given, str | os.PathLike) or "\0" in str(given):
        raise ConfigError(f"{name} = {given!r} is not allowed: a path is")
    return Path(given)


def check_file(name: str, path: Path) -> None:
    """Check that a file can be written; its folder may still have to be made.

    Args:
        name: of the option.
        path: the file.

    Raises:
        ConfigError: a folder, or where no file can be made.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir():
        raise ConfigError(f"{name} = '{path}' is not allowed: it is a folder")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{name} = '{path}' is not allowed: no file can be made in '{folder}'")


def write_output(name: str, path: Path, content: bytes) -> None:
    """Write a file that a user named, and make its folder.

    Args:
        name: of the option.
        path: the file.
        content: all of it.

    Raises:
        ConfigError: it cannot be written.
    """
    with written_as(name, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


@contextmanager
def written_as(name: str, path: Path) -> Iterator[None]:
    """Name the option whose file or folder the block cannot write.

    Raises:
        ConfigError: it cannot.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name} = '{path}' cannot be written: {why}") from None


def private_folder(path: Path) -> None:
    """Make a folder, if missing, and restrict it to its owner (0700)."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with descriptor(path) as folder:
        os.fchmod(folder, 0o700)


def private_log(path: Path) -> BinaryIO:
    """Return a file opened for appending, restricted to its owner (0600)."""
    log = open(path, "ab", opener=partial(open_plain, mode=0o600))  # noqa: SIM115
    os.fchmod(log.fileno(), 0o600)
    return log
