"""Fashion-MNIST: 28x28 images of clothes, 10 labels.

Every client splits its own data into train and test (MaxFL, appendix D.1), so the data set's own 60,000 train
and 10,000 test images are pooled: rows 0..59999 are the former, the rest the latter.

The files are looked for in ``data_dir/FashionMNIST/raw`` (torchvision's layout; ``data_dir`` is ``data``
unless given), then where Debian's package puts them, and are else downloaded into the first.
"""

import contextlib
import http.client
import io
import socket
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from fedappeal.protocol.config import ConfigError
from fedappeal.tasks import idx
from fedappeal.tasks.source import Labels, Pixels, Source

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")
DEFAULT_DATA_DIR = Path("data")
DOWNLOAD_TIMEOUT = 20.0
"""Seconds without an answer after which a download is given up."""

_PARTS = (("train", 60_000), ("t10k", 10_000))
_NAMES = tuple(f"{part}-{kind}" for part, _ in _PARTS for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
_LAYOUT = Path("FashionMNIST", "raw")


def find(data_dir: Path | None) -> Path | None:
    """Return the folder that holds the four files (idx or idx.gz), or None; downloads nothing."""
    for folder in ((data_dir or DEFAULT_DATA_DIR) / _LAYOUT, DEBIAN_DIR):
        if all(_file(folder, name) for name in _NAMES):
            return folder
    return None


def find_or_download(data_dir: Path | None) -> Path:
    """Return the folder that holds the four files; downloads them with torchvision if they are nowhere.

    Raises:
        ConfigError: they are nowhere and cannot be downloaded; names the remedies. No partial file is left.
    """
    folder = find(data_dir)
    if folder is not None:
        return folder
    root = data_dir or DEFAULT_DATA_DIR
    try:
        _download(root)
    except (OSError, RuntimeError, ImportError, EOFError, http.client.HTTPException) as error:
        if (folder := find(data_dir)) is not None:  # another process was faster
            return folder
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"task = 'fmnist' finds no data: put torchvision's FashionMNIST/raw folder into "
            f"data-dir = {str(root)!r}, or apt-get install dataset-fashion-mnist, "
            f"or let it download with a network (tried: {reason})"
        ) from None
    return root / _LAYOUT


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _download(root: Path) -> None:
    """Download beside the final place, then move file by file: each that is there is whole."""
    from torchvision.datasets import FashionMNIST

    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    timeout = socket.getdefaulttimeout()
    try:
        root.mkdir(parents=True, exist_ok=True)
        socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)  # urllib would wait for ever
        with tempfile.TemporaryDirectory(dir=root, prefix=".fmnist-") as scratch:
            with contextlib.redirect_stdout(io.StringIO()):
                FashionMNIST(scratch, download=True)
            target = root / _LAYOUT
            target.mkdir(parents=True, exist_ok=True)
            for file in (Path(scratch) / _LAYOUT).iterdir():
                file.replace(target / file.name)
    finally:
        socket.setdefaulttimeout(timeout)
        for folder in made:
            with contextlib.suppress(OSError):  # not empty: it worked
                folder.rmdir()


def _check(data_dir: Path | None) -> None:
    find_or_download(data_dir)


def _read(data_dir: Path | None) -> tuple[Pixels, Labels]:
    return _images_and_labels(find_or_download(data_dir).resolve())


@cache
def _images_and_labels(folder: Path) -> tuple[Pixels, Labels]:
    pixels = np.empty((SOURCE.num_examples, *SOURCE.input_shape), dtype=np.uint8)
    labels = np.empty(SOURCE.num_examples, dtype=np.int64)
    start = 0
    for part, count in _PARTS:
        rows = slice(start, start + count)
        pixels[rows, 0] = _part(folder, f"{part}-images-idx3-ubyte", (count, 28, 28))
        labels[rows] = _part(folder, f"{part}-labels-idx1-ubyte", (count,))
        start += count
    return pixels, labels


def _part(folder: Path, name: str, shape: tuple[int, ...]) -> Pixels:
    path = _file(folder, name)
    try:
        if path is None:
            raise ValueError(f"{folder / name} has disappeared")
        values = idx.read(path)
        if values.shape != shape:
            raise ValueError(f"{path} holds {values.shape}, not {shape}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"task = 'fmnist' cannot read its data: {error}") from None
    return values


SOURCE = Source(
    name="fmnist",
    input_shape=(1, 28, 28),
    num_classes=10,
    num_examples=70_000,
    scale=255.0,
    mean=0.2860,
    std=0.3530,
    default_model="mlp",
    check=_check,
    read=_read,
)
