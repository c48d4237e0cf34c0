"""EMNIST: 28x28 handwritten characters (Cohen et al. 2017), in the layout of torchvision's ``EMNIST``.

- ``emnist``: the split "by class", 62 labels: digits, upper and lower case (MaxFL). 814,255 images; half are digits.
- ``emnist-balanced``: 47 labels of 2,800 images; letters whose cases look alike share one (FedALIGN).

The files are looked for in ``data_dir/EMNIST/raw`` (``data_dir`` is ``data`` unless given), and are else
downloaded from NIST, all splits in one archive of 0.5 GB. Images lie on their side in the files and are left so,
as torchvision leaves them: no model here cares.
"""

from pathlib import Path

from fedappeal.tasks.datasets.idx_task import IdxTask
from fedappeal.tasks.files.data_files import DataFiles, by_torchvision
from fedappeal.tasks.files.idx_images import Part, names


def parts_of(split: str, train: int, test: int) -> tuple[Part, ...]:
    """Return the parts of one split, by torchvision's name of it."""
    return Part(f"emnist-{split}-train", train), Part(f"emnist-{split}-test", test)


def _files(task: str, split: str) -> DataFiles:
    return DataFiles(
        task=task,
        layout=Path("EMNIST", "raw"),
        names=names(parts_of(split, 0, 0)),
        remedy=f"put torchvision's EMNIST/raw folder, with the four emnist-{split}-* files, into {{data_dir}}",
        fetch=by_torchvision("EMNIST", split),
    )


class EMNIST(IdxTask):
    """Handwritten characters by class: 814,255 grey images of 28x28, 62 labels."""

    files = _files("emnist", "byclass")
    parts = parts_of("byclass", 697_932, 116_323)
    num_examples = 814_255
    num_classes = 62
    mean = 0.1736
    std = 0.3317


class EMNISTBalanced(IdxTask):
    """Handwritten characters, letters of one shape merged: 131,600 grey images of 28x28, 47 labels."""

    files = _files("emnist-balanced", "balanced")
    parts = parts_of("balanced", 112_800, 18_800)
    num_examples = 131_600
    num_classes = 47
    mean = 0.1751
    std = 0.3332
