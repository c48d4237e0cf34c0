"""A folder of images, one folder a class, as in torchvision's ``ImageFolder``.

A class folder is called by its label, ``0`` to ``C-1``, or by the task's name of that label; classes that a
volunteer has no images of may be missing. ImageFolder itself numbers the folders it finds in their order: of a
volunteer that has not all classes, or calls them otherwise, it would get the labels wrong without a word.

Pillow alone reads the images: importing torchvision would cost a small device seconds and 150 MB.
"""

import logging
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.data.columns import Unfit
from fedappeal.protocol.keys import DataProblem
from fedappeal.tasks.files.data_size import check_size

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The files that are taken for images: torchvision's list."""

NO_IMAGES = f"it holds no images: files that end in {', '.join(EXTENSIONS)}"
_MODES = {1: "L", 3: "RGB"}
_FLOAT = 4
_PIXEL = 12
"""Bytes of a pixel while Pillow reads an image.

Four each: as it is, upright, and converted.
"""
_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})

log = logging.getLogger("fedappeal.client")


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
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
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
    allowed = f"labels 0 to {num_classes - 1}" + (f", or {', '.join(class_names)}" if class_names else "")
    by_name = {name: label for label, name in enumerate(class_names)}
    labels: dict[str, int] = {}
    for folder in folders:
        number = int(folder) if folder.isascii() and folder.isdigit() else -1
        label = by_name.get(folder, number)
        if not 0 <= label < num_classes:
            raise Unfit(DataProblem.LABELS, f"class folder '{folder}' is no label of the task: {allowed} are")
        if label in labels.values():
            first = next(name for name, other in labels.items() if other == label)
            reason = f"class folders '{first}' and '{folder}' are both label {label}: one is needed"
            raise Unfit(DataProblem.LABELS, reason)
        labels[folder] = label
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
    files, others = labelled_files(root, labels)
    if not files:
        raise Unfit(DataProblem.TOO_FEW, NO_IMAGES)
    check_size(len(files) * prod(shape) * _FLOAT, "its images")
    x = np.empty((len(files), *shape), dtype=np.float32)
    resized = 0
    for row, (path, _) in enumerate(files):
        resized += read_image(path, x[row])
    if others:
        log.warning("data %s: %d file(s) that are no images are left out", root, others)
    if resized:
        log.info("data %s: %d of %d images are resized to %dx%d", root, resized, len(files), shape[2], shape[1])
    return x, np.array([label for _, label in files], dtype=np.int64)


def labelled_files(root: Path, labels: dict[str, int]) -> tuple[list[tuple[Path, int]], int]:
    """Return the images with their labels, and how many other files there are.

    Raises:
        OSError: a folder in it cannot be read.
        Unfit: a link leads to a folder of the same class: its images would count many times.
    """

    def stop(error: OSError) -> None:
        raise error

    files, others = [], 0
    for folder, label in sorted(labels.items(), key=lambda item: item[1]):
        inside: list[Path] = []
        seen: set[str] = set()
        for at, _, names in os.walk(root / folder, onerror=stop, followlinks=True):
            if (real := os.path.realpath(at)) in seen:
                raise Unfit(DataProblem.UNREADABLE, f"folder {at} is a link to one that is read already: {real}")
            seen.add(real)
            inside += [Path(at, name) for name in names]
        images = sorted(path for path in inside if path.suffix.lower() in EXTENSIONS)
        others += len(inside) - len(images)
        files += [(path, label) for path in images]
    return files, others


def read_image(path: Path, out: NDArray[np.float32]) -> bool:
    """Read one image into an array ``(channels, height, width)``; return whether it was resized."""
    from PIL import Image, ImageOps

    channels, height, width = out.shape
    try:
        with Image.open(path) as image:
            check_size(image.width * image.height * _PIXEL, f"its {image.width} x {image.height} pixels")
            if image.mode not in _EIGHT_BITS:
                raise ValueError(f"its pixels are of mode {image.mode}: 8 bits a channel are needed")
            # Cameras write how they were held beside the pixels.
            upright = ImageOps.exif_transpose(image).convert(_MODES[channels])
            size = upright.size
            if size != (width, height):
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(upright, dtype=np.float32).reshape(height, width, channels)
    except Exception as error:  # a decoder fails in ways of its own on a damaged file
        raise Unfit(DataProblem.UNREADABLE, f"image {path} cannot be read ({error})") from None
    out[:] = pixels.transpose(2, 0, 1) / np.float32(255)
    return bool(size != (width, height))
