"""Debian: which section of the archive is a package in? Clients are maintainers, teams among them.

The packages are those that this machine's apt knows (``apt-cache dumpavail``), one a source package; or a saved
list, ``debian/available`` in ``data_dir``: clients of one run on several machines need the same one. Maintainers'
addresses tell clients apart and go nowhere else.

Of a maintainer's packages whose words are the same (``gcc-11`` and ``gcc-12``) the first one counts, so that no test
example equals a training example of its client.

A package is the first line of its description: its words hashed to 512 entries (see
`fedappeal.tasks.datasets.debian`). Sections are those of Debian's archive at version 12; packages of another one
are left out. Areas (``non-free/net``) do not count.
"""

import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Features, Labels
from fedappeal.tasks.labelled import ByPerson

MAX_BYTES = 2**30
"""Longest list that is read; Debian 12's is 50 MB."""
MAX_LINE = 2**16
"""What a line may have; longer ones are read no further, and no field that is used is as long."""
MAX_PACKAGES = 1_000_000

_SAVED = Path("debian", "available")
_FIELDS = frozenset({b"Package", b"Source", b"Maintainer", b"Section", b"Description"})


class Package(NamedTuple):
    """A package: maintainer's address, section, and the description's first line."""

    maintainer: str
    section: str
    synopsis: str


def read_packages(data_dir: Path | None) -> list[Package]:
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


@contextmanager
def _opened(data_dir: Path | None) -> Iterator[tuple[IO[bytes], str]]:
    """Open the list, and yield it with its name.

    Raises:
        ConfigError: there is none.
    """
    if data_dir and (saved := data_dir / _SAVED).is_file():
        try:
            with saved.open("rb") as file:
                yield file, str(saved)
        except OSError as error:
            raise ConfigError(f"task = 'debian' cannot read {saved}: {error.strerror}") from None
        return
    if shutil.which("apt-cache") is None:
        raise ConfigError(
            f"task = 'debian' needs apt-cache, which Debian and Ubuntu have; elsewhere put the output of "
            f"apt-cache dumpavail into {_SAVED} of data-dir"
        )
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


_WORD = re.compile(r"[a-z0-9]+(?:[+#.-]+[a-z0-9+#]*)*")


def words(text: str) -> list[str]:
    """Return a text's words of a-z and 0-9, lower-case.

    In them ``+ # . -`` may follow: ``c++``, ``x.org``.
    """
    return _WORD.findall(text.lower())


def hash_words(texts: Sequence[str], features: int) -> Features:
    """Return binary bags of words by feature hashing, a row a text.

    Entry ``CRC-32(word) mod features`` is 1 for each word.

    CRC-32 (that of zlib, of the word in ASCII) is the same on every machine and in every version. Words that share an
    entry are not told apart; a text without a word is all zeros.

    Args:
        texts: the texts.
        features: entries a row.
    """
    rows = np.zeros((len(texts), features), dtype=np.float32)
    for row, text in enumerate(texts):
        rows[row, [zlib.crc32(word.encode()) % features for word in words(text)]] = 1.0
    return rows


FEATURES = 512
SECTIONS = (
    "admin", "cli-mono", "comm", "database", "debug", "devel", "doc", "editors", "education", "electronics",
    "embedded", "fonts", "games", "gnome", "gnu-r", "gnustep", "golang", "graphics", "hamradio", "haskell", "httpd",
    "interpreters", "introspection", "java", "javascript", "kde", "kernel", "libdevel", "libs", "lisp",
    "localization", "mail", "math", "metapackages", "misc", "net", "news", "ocaml", "oldlibs", "otherosfs", "perl",
    "php", "python", "ruby", "rust", "science", "shells", "sound", "tasks", "tex", "text", "utils", "vcs", "video",
    "web", "x11", "xfce", "zope",
)  # fmt: skip


class Debian(ByPerson):
    """Which section is a Debian package in? By maintainer, from its description's words."""

    edition = 2
    input_shape = (FEATURES,)
    num_classes = len(SECTIONS)
    class_names = SECTIONS
    people, things = "maintainers", "packages"

    def examples_by_person(self) -> Mapping[str, tuple[Features, Labels]]:
        """Return each maintainer's packages and their sections."""
        return _examples_by_person(self.data_dir)


@lru_cache(maxsize=1)
def _examples_by_person(data_dir: Path | None) -> Mapping[str, tuple[Features, Labels]]:
    number = {section: k for k, section in enumerate(SECTIONS)}
    by_maintainer: dict[str, list[Package]] = {}
    for package in read_packages(data_dir):
        if package.section in number:
            by_maintainer.setdefault(package.maintainer, []).append(package)
    examples = {}
    for maintainer, packages in by_maintainer.items():
        rows = hash_words([package.synopsis for package in packages], FEATURES)
        first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        examples[maintainer] = rows[first], np.array([number[packages[k].section] for k in first], dtype=np.int64)
    return examples
