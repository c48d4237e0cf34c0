"""Debian: which section of the archive is a package in? Clients are maintainers, teams among them.

The packages are those that this machine's apt knows (``apt-cache dumpavail``), one a source package; or a saved
list, ``debian/available`` in ``data_dir``: clients of one run on several machines need the same one. Maintainers'
addresses tell clients apart and go nowhere else.

Of a maintainer's packages whose words are the same (``gcc-11`` and ``gcc-12``) the first one counts, so that no test
example equals a training example of its client.

A package is the first line of its description: its words hashed to 512 entries (see
`fedappeal.tasks.files.hashed_words`). Sections are those of Debian's archive at version 12; packages of another one
are left out. Areas (``non-free/net``) do not count.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedappeal.tasks.arrays import Features, Labels
from fedappeal.tasks.by_person import ByPerson
from fedappeal.tasks.files.debian_packages import Package, read
from fedappeal.tasks.files.hashed_words import hashed

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

    def held(self) -> Mapping[str, tuple[Features, Labels]]:
        """Return each maintainer's packages and their sections."""
        return _held(self.data_dir)


@lru_cache(maxsize=1)
def _held(data_dir: Path | None) -> Mapping[str, tuple[Features, Labels]]:
    number = {section: k for k, section in enumerate(SECTIONS)}
    by_maintainer: dict[str, list[Package]] = {}
    for package in read(data_dir):
        if package.section in number:
            by_maintainer.setdefault(package.maintainer, []).append(package)
    held = {}
    for maintainer, packages in by_maintainer.items():
        rows = hashed([package.synopsis for package in packages], FEATURES)
        first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        held[maintainer] = rows[first], np.array([number[packages[k].section] for k in first], dtype=np.int64)
    return held
