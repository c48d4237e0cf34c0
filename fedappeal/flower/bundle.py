"""A run's bundle (FAB, Flower App Bundle), the zip file of an app.

It is built of settings alone, and its settings are read here.

``flwr-serverapp`` puts the unpacked bundle in front of ``sys.path`` and imports the ServerApp that the bundle names.
What a SuperLink sends as a bundle may be anything: it is read within bounds, whatever its headers say.
"""

import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import tomli
import tomli_w
from flwr.app import UserConfig
from flwr.cli.build import build_fab_from_files
from flwr.common.config import flatten_dict, fuse_dicts

from fedappeal.flower import versions
from fedappeal.settings.model import is_reference
from fedappeal.system.versions import FEDAPPEAL

SERVER_APP = "server.app:app"
CLIENT_APP = "client.app:app"
_PROJECT = "fedappeal"
_LICENSE = "Settings of one run. The code that runs is the installed fedappeal package, under its own license.\n"
"""Text of the license file, which format 1 insists on."""
_FORMAT = 1
_LARGEST_SETTINGS = 2**20
MOST_FILES = 2000
"""Files of a bundle."""
LARGEST = 10 * 2**20
"""Bytes of a bundle whose code may run: as many as `flwr build` allows."""
MOST_UNPACKED = 64 * 2**20
"""Bytes of its files together."""
_LONGEST_NAME, _LONGEST_PART = 200, 255
"""Characters of a file's name with its folders, and bytes of each part, which a file system takes."""
_SETTINGS, _HEADER = "pyproject.toml", b"PK\x01\x02"


@dataclass(frozen=True)
class RunSettings:
    """What a run's bundle says.

    Attributes:
        config: the run configuration, with what was overridden at the submission.
        version: ``project.version`` of the bundle.
        bundle: the bundle itself, unread; empty where it is larger than `LARGEST`.
        client_app: ``module:attribute`` of its ClientApp; empty: it names none.
    """

    config: UserConfig
    version: str
    bundle: bytes = field(default=b"", compare=False, repr=False)
    client_app: str = field(default="", compare=False)


def build_fab(
    config: Mapping[str, Any], serverapp: str = SERVER_APP, clientapp: str = CLIENT_APP, *, version: str = FEDAPPEAL
) -> bytes:
    """Return a bundle that holds settings and names its apps.

    It holds no code: the SuperLink imports the ServerApp that it names, and with no ``server`` package in the bundle
    it finds the installed one.

    Args:
        config: the run configuration, scalars; a dot in a key stands for a table in the bundle.
        serverapp: ``module:attribute`` of the ServerApp, importable where the SuperLink runs.
        clientapp: the same for stock SuperNodes; the long-lived client runs its own installed app.
        version: the bundle's version, for information.

    Returns:
        The bundle's bytes, the same for the same arguments.

    Raises:
        ValueError: if a key is both a setting and a table, or Flower refuses the settings.
    """
    project: dict[str, Any] = {
        "project.name": _PROJECT,
        "project.version": version,
        "project.description": "Settings of one fedappeal run",
        "project.license.file": "LICENSE",
        "project.dependencies": [versions.SUPPORTED],
        "tool.flwr.app.publisher": _PROJECT,
        "tool.flwr.app.fab-format-version": _FORMAT,
        "tool.flwr.app.flwr-version-target": versions.OLDEST,
        "tool.flwr.app.components": {"serverapp": serverapp, "clientapp": clientapp},
        "tool.flwr.app.config": nest_settings(config),
    }
    files = {"pyproject.toml": tomli_w.dumps(nest_settings(project)).encode(), "LICENSE": _LICENSE.encode()}
    return build_fab_from_files(files)[0]


def nest_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with dotted keys as tables, as Flower wants them in TOML.

    Raises:
        ValueError: if a key is both a setting and a table.
    """
    tables: dict[str, Any] = {}
    for key, value in config.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ValueError(f"{key} = {value!r} is not allowed: '{part}' is a setting, no table")
        if name in table:
            raise ValueError(f"{key} = {value!r} is not allowed: '{key}' is a table")
        table[name] = value
    return tables


def read_bundle(content: bytes, overrides: UserConfig) -> RunSettings:
    """Return a bundle's settings, nested ones under dotted keys.

    Args:
        content: the bundle.
        overrides: settings that differ from the bundle's; the keys must exist there.

    Raises:
        BundleRefused: if it is no bundle, or its settings cannot be read.
    """
    with opened(content) as archive:
        pyproject = tomli.loads(read_file(archive, _SETTINGS, _LARGEST_SETTINGS).decode())
        app = pyproject["tool"]["flwr"]["app"]
        defaults = flatten_dict(app.get("config", {}))
        settings = fuse_dicts(defaults, overrides), str(pyproject["project"]["version"])
        client_app = str(app.get("components", {}).get("clientapp", ""))
    return RunSettings(*settings, content if len(content) <= LARGEST else b"", client_app)


class BundleRefused(ValueError):
    """A bundle is not allowed; the text says why, in one line that goes on from there."""


@contextmanager
def opened(content: bytes) -> Iterator[zipfile.ZipFile]:
    """Open a bundle; whatever reading it raises inside the block becomes `BundleRefused`."""
    try:
        if (files := content.count(_HEADER)) > MOST_FILES:
            raise BundleRefused(f"it has {files} files: at most {MOST_FILES} are allowed")
        with zipfile.ZipFile(BytesIO(content)) as archive:
            yield archive
    except BundleRefused:
        raise
    except Exception as error:  # garbage raises almost anything
        raise BundleRefused(f"it cannot be read: {error}") from None


def read_file(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return a file of a bundle.

    Raises:
        BundleRefused: it has more bytes than these.
    """
    with archive.open(name) as file:
        content = file.read(most + 1)  # by a number: without one, a header that lies unpacks all there is
    if len(content) > most or archive.getinfo(name).file_size > most:
        raise BundleRefused(f"'{name}' has more than {most} bytes")
    return content


def check_app(content: bytes, client_app: str) -> None:
    """Check a bundle whose code may run: its files, and that its ClientApp is one of them. Nothing is unpacked.

    Args:
        content: the bundle.
        client_app: ``module:attribute`` of its ClientApp.

    Raises:
        BundleRefused: it is not allowed.
    """
    with opened(content) as archive:
        files = _files_of(archive)
        module, _, _ = client_app.partition(":")
        path = module.replace(".", "/")
        if len(client_app) > _LONGEST_NAME:  # its owner reads it
            raise BundleRefused(f"clientapp has {len(client_app)} characters: at most {_LONGEST_NAME} are allowed")
        if not is_reference(client_app) or not {f"{path}.py", f"{path}/__init__.py"} & set(files):
            raise BundleRefused(f"clientapp = {client_app!r} is not allowed: module:attribute of a file of it")


def unpack_app(content: bytes, folder: Path) -> None:
    """Write a bundle's files into a folder; errors as `check_app`."""
    with opened(content) as archive:
        for name in _files_of(archive):
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(read_file(archive, name, MOST_UNPACKED))


def _files_of(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of a bundle's files; errors as `check_app`."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    for info in infos:
        parts = info.filename.split("/")
        plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
        fits = len(info.filename) <= _LONGEST_NAME and all(len(part.encode()) <= _LONGEST_PART for part in parts)
        # What cannot be printed could be taken for another name by its owner, who reads it.
        readable = info.filename.isprintable() and "\\" not in info.filename
        if not (plain and readable and fits) or {"", ".", ".."} & set(parts):
            raise BundleRefused(
                f"the file {info.filename[:_LONGEST_NAME]!r} is not allowed: a plain file in a folder of it"
            )
    if (size := sum(info.file_size for info in infos)) > MOST_UNPACKED:
        raise BundleRefused(f"its files are {size} bytes: at most {MOST_UNPACKED} are allowed")
    if len(names := {info.filename for info in infos}) != len(infos):
        raise BundleRefused("it has two files of one name")
    return sorted(names)
