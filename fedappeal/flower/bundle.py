"""A run's bundle (FAB, Flower App Bundle), the zip file of an app.

It is built of settings alone, and its settings are read here.

``flwr-serverapp`` puts the unpacked bundle in front of ``sys.path`` and imports the ServerApp that the bundle names.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import tomli_w
from flwr.app import UserConfig
from flwr.cli.build import build_fab_from_files
from flwr.common.config import flatten_dict, fuse_dicts, get_fab_config

from fedappeal.flower import versions
from fedappeal.system.versions import FEDAPPEAL

SERVER_APP = "server.app:app"
CLIENT_APP = "client.app:app"
_PROJECT = "fedappeal"
_LICENSE = "Settings of one run. The code that runs is the installed fedappeal package, under its own license.\n"
"""Text of the license file, which format 1 insists on."""
_FORMAT = 1
_LARGEST_SETTINGS = 2**20


@dataclass(frozen=True)
class RunSettings:
    """The settings and version in a run's bundle, never its code.

    Attributes:
        config: the run configuration, with what was overridden at the submission.
        version: ``project.version`` of the bundle.
    """

    config: UserConfig
    version: str


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
        ValueError: if it is no bundle, or its settings cannot be read.
    """
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            if (size := archive.getinfo("pyproject.toml").file_size) > _LARGEST_SETTINGS:
                raise ValueError(f"its settings are {size} bytes: at most {_LARGEST_SETTINGS} are allowed")
        pyproject = get_fab_config(content)
        defaults = flatten_dict(pyproject["tool"]["flwr"]["app"].get("config", {}))
        return RunSettings(fuse_dicts(defaults, overrides), str(pyproject["project"]["version"]))
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"the bundle cannot be read: {error}") from None
