"""Settings files: runs that an operator has written down, and starts from the live page."""

import stat
import time
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import printable
from fedappeal.runs.checks import check_allowed
from fedappeal.settings.config import ConfigError, RunConfig

MOST_FILES = 100
MOST_BYTES = 64 * 1024
_ENDING = ".toml"


def settings_files(folder: Path | None) -> list[str]:
    """Return the names of a folder's settings files, sorted; of very many the first."""
    names = (path.name for path in folder.glob(f"*{_ENDING}")) if folder is not None else ()
    return sorted(name for name in names if printable(name, 100) == name)[:MOST_FILES]


def run_options(file: Path, runs: Path, allow: Iterable[str]) -> list[str]:
    """Return the options of `fedappeal submit` for the run of a settings file.

    Args:
        file: general settings by kebab-case key, those of plug-ins in tables of their names.
        runs: where the run's folder is made.
        allow: packages whose code the run may name.

    Raises:
        ConfigError: a file that cannot be read, a setting or code that is not allowed.
    """
    settings = _read(file)
    if "out" in settings:
        raise ConfigError(f"out = '{settings['out']}' is not allowed in '{file}': a folder beside it is made")
    check_allowed(RunConfig.parse(settings), file, allow)
    options = []
    for key, value in settings.items():
        written = str(value).lower() if isinstance(value, bool) else str(value)
        if "." in key:
            options += ["--set", f"{key}={written}"]
        elif isinstance(value, bool):
            options += [f"--{key}" if value else f"--no-{key}"]
        else:
            options += [f"--{key}={written}"]
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{file.stem}"
    return [*options, f"--out={runs.absolute() / name}"]


def _read(file: Path) -> dict[str, Any]:
    """Return a file's settings, those of plug-ins under ``NAME.KEY``.

    Raises as `run_options`.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode) or file.stat().st_size > MOST_BYTES:
            raise ConfigError(f"'{file}' is not allowed: a file of at most {MOST_BYTES} bytes")
        read = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"'{file}' cannot be read: {error}") from None
    settings: dict[str, Any] = {}
    for key, value in read.items():
        settings |= {f"{key}.{name}": v for name, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return settings
