"""Read the list of Debian's packages: a saved one, or what ``apt-cache dumpavail`` prints."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from fedappeal.settings.config import ConfigError

MAX_BYTES = 2**30
"""Longest list that is read; Debian 12's is 50 MB."""
MAX_LINE = 2**16
"""What a line may have; longer ones are read no further, and no field that is used is as long."""
MAX_PACKAGES = 1_000_000

_SAVED = Path("debian", "available")
_FIELDS = frozenset({b"Package", b"Source", b"Maintainer", b"Section", b"Description"})


class Package(NamedTuple):
    """A package: the address of its maintainer, its section and the first line of its description."""

    maintainer: str
    section: str
    synopsis: str


def read(data_dir: Path | None) -> list[Package]:
    """Return the first package of each source, in the list's order.

    Packages of one source have nearly the same description; one of them is kept, so that none is learned from its
    twin.

    Args:
        data_dir: its ``debian/available`` is read where it is there, in place of this machine's own list.

    Raises:
        ConfigError: no list, or one that is too long.
    """
    by_source: dict[str, Package] = {}
    with _opened(data_dir) as (file, name):
        for count, fields in enumerate(_stanzas(file, name), start=1):
            if count > MAX_PACKAGES:
                raise ConfigError(f"task = 'debian': {name} has more than {MAX_PACKAGES:,} packages")
            source = (fields.get("Source") or fields.get("Package", "")).split(" ")[0]
            maintainer, section = fields.get("Maintainer", ""), fields.get("Section", "")
            if not (source and maintainer and section and fields.get("Description")) or source in by_source:
                continue
            address = maintainer.rpartition("<")[2].rstrip("> ").lower()
            by_source[source] = Package(address, section.rpartition("/")[2], fields["Description"])
    if not by_source:
        raise ConfigError(
            f"task = 'debian': {name} lists no package: run apt-get update, or put the output of "
            f"apt-cache dumpavail into {_SAVED} of data-dir"
        )
    return list(by_source.values())


def check(data_dir: Path | None) -> None:
    """Check that there is a list.

    Raises:
        ConfigError: there is none.
    """
    if not (data_dir and (data_dir / _SAVED).is_file()) and shutil.which("apt-cache") is None:
        raise ConfigError(
            f"task = 'debian' needs apt-cache, which Debian and Ubuntu have; elsewhere put the output of "
            f"apt-cache dumpavail into {_SAVED} of data-dir"
        )


@contextmanager
def _opened(data_dir: Path | None) -> Iterator[tuple[IO[bytes], str]]:
    """Open the list, and say what it is called."""
    check(data_dir)
    if data_dir and (saved := data_dir / _SAVED).is_file():
        try:
            with saved.open("rb") as file:
                yield file, str(saved)
        except OSError as error:
            raise ConfigError(f"task = 'debian' cannot read {saved}: {error.strerror}") from None
        return
    command = ["apt-cache", "dumpavail"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout, "apt-cache dumpavail"
        finally:
            process.kill()  # where reading stopped early; it has ended else


def _stanzas(file: IO[bytes], name: str) -> Iterator[dict[str, str]]:
    """Yield the wanted fields of each package; a field's further lines are left out."""
    fields: dict[str, str] = {}
    total, whole = 0, True
    while line := file.readline(MAX_LINE):
        if (total := total + len(line)) > MAX_BYTES:
            raise ConfigError(f"task = 'debian': {name} is longer than {MAX_BYTES:,} bytes")
        starts, whole = whole, line.endswith(b"\n")
        if not starts:
            continue
        if not line.strip():
            yield fields
            fields = {}
            continue
        key, colon, value = line.partition(b":")
        if colon and key in _FIELDS:
            fields[key.decode()] = value.decode("utf-8", "replace").strip()
    yield fields
