"""A folder of images, one folder a class, as in torchvision's ``ImageFolder``.

A class folder is called by its label, ``0`` to ``C-1``, or by the task's name of that label; classes that a
volunteer has no images of may be missing. ImageFolder itself numbers the folders it finds in their order: of a
volunteer that has not all classes, or calls them otherwise, it would get the labels wrong without a word.

Pillow alone reads the images: importing torchvision would cost a small device seconds and 150 MB.
"""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.cells import Classes
from fedappeal.data.columns import Unfit
from fedappeal.data.data_size import check_size
from fedappeal.data.pixels import Noticed, opaque, pixels_of
from fedappeal.protocol.keys import DataProblem

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The files that are taken for images: torchvision's list."""

NO_IMAGES = f"it holds no images: files that end in {', '.join(EXTENSIONS)}"
_MODES = {1: "L", 3: "RGB"}
_FLOAT = 4
_PIXEL = 12
"""Bytes of a pixel while Pillow reads an image.

Four each: as it is, upright, and converted.
"""
_WITH_ALPHA = 12
"""Further ones where it is transparent: with its alpha, white, and both together."""
_NOT_THE_OWNERS = frozenset({"@eadir", "__macosx", "thumbs.db", "desktop.ini", "$recycle.bin", "#recycle"})
"""What systems put into folders of images, in small letters, besides names with a leading dot."""
log = logging.getLogger("fedappeal.client")


@dataclass
class FolderNoticed(Noticed):
    """The oddities of a folder of images, each said once.

    Attributes:
        hidden: files and folders that the owner does not see, which are skipped.
        others: files that are no images.
        resized: images that had another size.
    """

    hidden: int = 0
    others: int = 0
    resized: int = 0

    def say(self, root: Path, images: int, shape: tuple[int, ...]) -> None:
        """Log a line for each oddity."""
        for count, text in (
            (self.hidden, "data %s: %d hidden file(s) or folder(s) are skipped"),
            (self.others, "data %s: %d file(s) that are no images are left out"),
            (self.transparent, "data %s: %d transparent image(s) are laid over white"),
            (self.frames, "data %s: of %d image(s) with several frames the first one is used"),
        ):
            if count:
                log.warning(text, root, count)
        if self.resized:
            text = "data %s: %d of %d images are resized to %dx%d"
            log.info(text, root, self.resized, images, shape[2], shape[1])


def is_hidden(name: str) -> bool:
    """Whether a file or folder is the system's, not the owner's."""
    return name.startswith(".") or name.lower() in _NOT_THE_OWNERS


def check_image_shape(shape: tuple[int, ...]) -> None:
    """Check that a task's inputs are images.

    Args:
        shape: of one input: ``(channels, height, width)``; 1 channel is grey, 3 are RGB.

    Raises:
        Unfit: they are not.
    """
    if len(shape) != 3 or shape[0] not in _MODES:
        raise Unfit(DataProblem.SHAPE, f"the task's inputs have shape {shape}, which images have not: give an .npz")


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders, sorted, without hidden ones.

    Raises:
        Unfit: there are none; OSError: the folder cannot be read.
    """
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not is_hidden(entry.name))
    if not names:
        raise Unfit(DataProblem.UNREADABLE, "it holds no folders: one folder a class is needed, called by its label")
    return names


def labels_of(folders: Sequence[str], class_names: Sequence[str], num_classes: int) -> dict[str, int]:
    """Return each class folder's label.

    Args:
        folders: names of the class folders.
        class_names: the task's names of the labels 0..C-1; empty where they have none.
        num_classes: number of labels C.

    Raises:
        Unfit: a folder that is no label, or two of one label.
    """
    classes, labels = Classes(class_names, num_classes), dict[str, int]()
    for folder, label in zip(folders, classes.labels_of(folders).tolist(), strict=True):
        if math.isnan(label):
            raise Unfit(DataProblem.LABELS, f"class folder '{folder}' is no label of the task: {classes.allowed} are")
        if first := next((name for name, other in labels.items() if other == label), ""):
            reason = f"class folders '{first}' and '{folder}' are both label {label:g}: one is needed"
            raise Unfit(DataProblem.LABELS, reason)
        labels[folder] = int(label)
    return labels


def read_images(
    root: Path, shape: tuple[int, ...], class_names: Sequence[str], num_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read all images, converted to the task's channels and resized to its height and width.

    Args:
        root: the folder of the class folders.
        shape: as in `check_image_shape`.
        class_names: as in `labels_of`.
        num_classes: number of labels C.

    Returns:
        Floats in [0, 1], black to white, shape ``(n, *shape)``, and labels, shape ``(n,)``; in the order of the
        labels' folders and the files' paths.

    Raises:
        Unfit: a task without images, class folders that do not fit, no image at all, or one that cannot be read
            (the message names it); OSError: a folder that cannot be read.
    """
    check_image_shape(shape)
    labels = labels_of(class_folders(root), class_names, num_classes)
    files, noticed = labelled_files(root, labels)
    if not files:
        raise Unfit(DataProblem.TOO_FEW, NO_IMAGES)
    check_size(len(files) * math.prod(shape) * _FLOAT, "its images")
    x = np.empty((len(files), *shape), dtype=np.float32)
    for row, (path, _) in enumerate(files):
        read_image(path, x[row], noticed)
    noticed.say(root, len(files), shape)
    return x, np.array([label for _, label in files], dtype=np.int64)


def labelled_files(root: Path, labels: dict[str, int]) -> tuple[list[tuple[Path, int]], FolderNoticed]:
    """Return the images with labels, and the oddities on the way.

    Raises:
        OSError: a folder in it cannot be read.
        Unfit: a link leads to a folder of the same class: its images would count many times.
    """

    def stop(error: OSError) -> None:
        raise error

    files, noticed = [], FolderNoticed()
    if "" not in labels:
        noticed.hidden = sum(is_hidden(entry.name) for entry in os.scandir(root))
    for folder, label in sorted(labels.items(), key=lambda item: item[1]):
        inside: list[Path] = []
        seen: set[str] = set()
        for at, folders, names in os.walk(root / folder, onerror=stop, followlinks=True):
            noticed.hidden += sum(map(is_hidden, (*folders, *names)))
            folders[:] = [name for name in folders if not is_hidden(name)]
            if (real := os.path.realpath(at)) in seen:
                raise Unfit(DataProblem.UNREADABLE, f"folder {at} is a link to one that is read already: {real}")
            seen.add(real)
            inside += [Path(at, name) for name in names if not is_hidden(name)]
        images = sorted(path for path in inside if path.suffix.lower() in EXTENSIONS)
        noticed.others += len(inside) - len(images)
        files += [(path, label) for path in images]
    return files, noticed


def read_image(path: Path, out: NDArray[np.float32], noticed: FolderNoticed) -> None:
    """Read an image into an array ``(channels, height, width)``, and count its oddities."""
    from PIL import Image

    channels, height, width = out.shape
    try:
        if not path.is_file():
            raise OSError("it is no file")  # a pipe would be waited for
        with Image.open(path) as image:
            pixel = _PIXEL + (_WITH_ALPHA if image.has_transparency_data else 0)
            check_size(image.width * image.height * pixel, f"its {image.width} x {image.height} pixels")
            upright = opaque(image, noticed, _MODES[channels])
            size = upright.size
            if size != (width, height):
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
            pixels = pixels_of(upright)
    except Exception as error:  # a decoder fails in ways of its own on a damaged file
        raise Unfit(DataProblem.UNREADABLE, f"image {path} cannot be read ({error})") from None
    out[:] = pixels
    noticed.resized += size != (width, height)
