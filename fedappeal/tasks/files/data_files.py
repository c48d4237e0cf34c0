"""A data set's files: where they are looked for, and how they are downloaded and read."""

import contextlib
import http.client
import io
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedappeal.settings.config import ConfigError

DEFAULT_DATA_DIR = Path("data")
DATA_DIR = "FEDAPPEAL_DATA_DIR"
"""Environment variable: the data-dir of programs that have no such option: a server, `fedappeal predict`."""
DOWNLOAD_TIMEOUT = 20.0
"""Seconds without an answer after which a download ends."""

_ARCHIVES = {".zip", ".tgz", ".tar"}


def environment_data_dir() -> Path | None:
    """Return the folder that the environment names, or None."""
    folder = os.environ.get(DATA_DIR)
    return Path(folder) if folder else None


def package_file(task: str, package: str, file: Path, install: str, remedy: str) -> Path:
    """Return a file that comes with a package, without importing the package, which may take seconds.

    Args:
        task: the task's name, for messages.
        package: the package.
        file: where it is in the package.
        install: what to install where there is no such package.
        remedy: what the message says of a package that lacks the file, and what to do.

    Raises:
        ConfigError: one line: either.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(f"task = {task!r} needs {install}")
    path = Path(spec.origin).parent / file
    if not path.is_file():
        raise ConfigError(f"task = {task!r} needs {path}, which this {remedy}")
    return path


@contextlib.contextmanager
def faults_of(data: str) -> Iterator[None]:
    """Raise the block's faults as one line each, behind the words that name the data."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{data}: {' '.join(str(error).split())}") from None


def by_torchvision(name: str, *arguments: str) -> Callable[[str], object]:
    """Return the function that downloads a torchvision data set into a folder."""

    def fetch(root: str) -> object:
        from torchvision import datasets

        return getattr(datasets, name)(root, *arguments, download=True)

    return fetch


@dataclass(frozen=True)
class DataFiles:
    """Files that lie together in one folder.

    Attributes:
        task: the task's name, for messages.
        layout: the folder under ``data-dir`` (``data`` unless given), as torchvision names it.
        names: the files that must all be there, plain or with ``.gz``.
        remedy: how to get them there; the message's part after "task = ... finds no data:".
        fetch: downloads them into ``layout`` under a given folder; None: they are not downloaded.
        elsewhere: further folders to look in, without ``layout``.
    """

    task: str
    layout: Path
    names: tuple[str, ...]
    remedy: str
    fetch: Callable[[str], object] | None = None
    elsewhere: Callable[[], Sequence[Path]] = tuple

    def find(self, data_dir: Path | None) -> Path | None:
        """Return the folder that holds all files, or None; downloads nothing."""
        for folder in ((data_dir or DEFAULT_DATA_DIR) / self.layout, *self.elsewhere()):
            if all(self._file(folder, name) for name in self.names):
                return folder
        return None

    def find_or_download(self, data_dir: Path | None) -> Path:
        """Return the folder that holds all files; downloads them where none does.

        Raises:
            ConfigError: no folder has them and the download failed; names the remedies. No partial file is left.
        """
        folder = self.find(data_dir)
        if folder is not None:
            return folder
        root = data_dir or DEFAULT_DATA_DIR
        where = f"task = {self.task!r} finds no data: "
        remedy = self.remedy.format(data_dir=f"data-dir = {str(root)!r}")
        if self.fetch is None:
            raise ConfigError(where + remedy)
        try:
            self._download(root, self.fetch)
        except (OSError, RuntimeError, ImportError, EOFError, http.client.HTTPException) as error:
            if (folder := self.find(data_dir)) is not None:  # another process was faster
                return folder
            reason = " ".join(str(error).split())
            raise ConfigError(f"{where}{remedy}, or let it download with a network (tried: {reason})") from None
        if (folder := self.find(data_dir)) is None:
            raise ConfigError(f"{where}{remedy} (what was downloaded lacks some of {', '.join(self.names)})")
        return folder

    def path(self, folder: Path, name: str) -> Path:
        """Return one file of a folder that was found.

        Raises:
            ConfigError: it has disappeared.
        """
        if (path := self._file(folder, name)) is None:
            raise ConfigError(f"task = {self.task!r} cannot read its data: {folder / name} has disappeared")
        return path

    @staticmethod
    def _file(folder: Path, name: str) -> Path | None:
        return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)

    def _download(self, root: Path, fetch: Callable[[str], object]) -> None:
        """Download beside the final place, then move file by file: every file is whole."""
        made = [folder for folder in (root, *root.parents) if not folder.exists()]
        timeout = socket.getdefaulttimeout()
        try:
            root.mkdir(parents=True, exist_ok=True)
            socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)  # urllib would wait without end
            with tempfile.TemporaryDirectory(dir=root, prefix=f".{self.task}-") as scratch:
                with contextlib.redirect_stdout(io.StringIO()):
                    fetch(scratch)
                target = root / self.layout
                target.mkdir(parents=True, exist_ok=True)
                for file in (Path(scratch) / self.layout).iterdir():
                    if file.is_file() and file.suffix not in _ARCHIVES:
                        file.replace(target / file.name)
        finally:
            socket.setdefaulttimeout(timeout)
            for folder in made:
                with contextlib.suppress(OSError):  # not empty: it worked
                    folder.rmdir()
