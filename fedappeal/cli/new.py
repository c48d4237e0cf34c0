"""`fedappeal new`: a commented file from which an author of a plug-in starts, or a whole Flower app."""

import re
from importlib import resources
from importlib.resources.abc import Traversable
from keyword import iskeyword
from pathlib import Path

from fedappeal.core.plugins import is_importable, name_of_class
from fedappeal.settings.config import ConfigError, RunConfig

_EXAMPLE = re.compile("fedappeal simulate .*")
KINDS = ("strategy", "policy", "rule", "task", "model")
"""What there is a file for, under its name in `fedappeal.cli.templates`."""
APP = "app"
"""What there is a folder for."""
_APPS_NAME = "mineapp"
_APP_NAME = re.compile("[a-z][a-z0-9]{0,31}")
"""What Flower takes as an app's name, and Python as a package's."""


def write_new(kind: str, path: Path) -> str:
    """Write a runnable plug-in; return a line with the next step.

    Args:
        kind: one of `KINDS`, or `APP`.
        path: the file, in the current folder or below: ``mine.py`` has the class ``Mine``; of an app its folder.

    Raises:
        ConfigError: one line: no such kind, or a file that is there, cannot be written, or would not be imported.
    """
    if kind == APP:
        return _write_app(path)
    if kind not in KINDS:
        raise ConfigError(f"kind = '{kind}' is not allowed: {', '.join((*KINDS, APP))}")
    *_, name = modules = path.with_suffix("").parts
    if path.suffix != ".py" or not all(part.isidentifier() and not iskeyword(part) for part in modules):
        raise ConfigError(f"file = '{path}' is not allowed: letters, digits and _, ending in .py, below this folder")
    if not path.exists() and not Path(modules[0]).is_dir():
        _check_free("file", path, modules[0])
    text = resources.files("fedappeal.cli.templates").joinpath(f"{kind}.py").read_text(encoding="utf-8")
    class_name = "".join(map(str.capitalize, name.split("_")))
    if name_of_class(class_name) in RunConfig.by_key() or re.search(rf"\b{class_name}\b", text.replace("Mine", "")):
        class_name = f"My{class_name}"
    reference = f"{'.'.join(modules)}:{class_name}"
    values = {"mine:Mine": reference, "mine.": f"{name_of_class(class_name)}.", "Mine": class_name}
    text = re.sub(r"mine:Mine|mine\.|Mine", lambda mark: values[mark[0]], text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"file = '{path}' is not allowed: {error.strerror}; nothing was written") from None
    return f"{path}: change it, try it with `fedappeal check {reference}`, run it with `{_EXAMPLE.findall(text)[0]}`"


def _write_app(folder: Path) -> str:
    """Write a Flower app into a new folder; return a line with the next step.

    The folder's name is the package's.
    """
    name = folder.name
    if not _APP_NAME.fullmatch(name) or iskeyword(name):
        raise ConfigError(f"folder = '{folder}' is not allowed: up to 32 small letters and digits, a letter first")
    if not folder.exists():
        _check_free("folder", folder, name)
    try:
        folder.mkdir(parents=True)
        _copy(resources.files("fedappeal.cli.templates").joinpath(APP), folder, name)
    except OSError as error:
        raise ConfigError(f"folder = '{folder}' is not allowed: {error.strerror}; nothing was written") from None
    return f"{folder}: change it, run it with `flwr run {folder}`"


def _check_free(setting: str, path: Path, module: str) -> None:
    if is_importable(module):
        raise ConfigError(f"{setting} = '{path}' is not allowed: Python has another module '{module}'")


def _copy(source: Traversable, target: Path, name: str) -> None:
    for entry in source.iterdir():
        place = target / entry.name.replace(_APPS_NAME, name)
        if entry.is_dir():
            if entry.name != "__pycache__":
                place.mkdir()
                _copy(entry, place, name)
        else:
            place.write_text(entry.read_text(encoding="utf-8").replace(_APPS_NAME, name), encoding="utf-8")
