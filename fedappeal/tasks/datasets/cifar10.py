"""CIFAR-10: 32x32 colour images of ten kinds of things (Krizhevsky 2009).

The layout is that of torchvision's ``CIFAR10``. The six pickled batches of 10,000 are looked for in
``data_dir/cifar-10-batches-py`` (``data_dir`` is ``data`` unless given), and are else downloaded there. Train and
test batches are pooled, in this order.
"""

from functools import cache
from pathlib import Path

import numpy as np

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.arrays import Labels, Pixels
from fedappeal.tasks.files import cifar_batch
from fedappeal.tasks.files.data_files import DataFiles, by_torchvision
from fedappeal.tasks.partitioned import PartitionedTask

BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


FILES = DataFiles(
    task="cifar10",
    layout=Path("cifar-10-batches-py"),
    names=BATCHES,
    remedy="put torchvision's cifar-10-batches-py folder into {data_dir}",
    fetch=by_torchvision("CIFAR10"),
)


class CIFAR10(PartitionedTask):
    """Ten kinds of things: 60,000 colour images of 32x32."""

    input_shape = cifar_batch.SHAPE
    num_classes = cifar_batch.NUM_CLASSES
    num_examples = 60_000
    scale = 255.0
    mean = 0.4734
    std = 0.2516
    default_model = "cnn"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def check_data(self) -> None:
        """Find the batches, or download them."""
        FILES.find_or_download(self.data_dir)

    def read(self) -> tuple[Pixels, Labels]:
        """Return all images and labels; read once a process."""
        return _pooled(FILES.find_or_download(self.data_dir).resolve(), self.num_examples // len(BATCHES))


@cache
def _pooled(folder: Path, batch: int) -> tuple[Pixels, Labels]:
    """Return all images and labels of batches that hold ``batch`` images each."""
    pixels = np.empty((len(BATCHES) * batch, *cifar_batch.SHAPE), dtype=np.uint8)
    labels = np.empty(len(pixels), dtype=np.int64)
    for k, name in enumerate(BATCHES):
        rows = slice(k * batch, (k + 1) * batch)
        path = FILES.path(folder, name)
        try:
            pixels[rows], labels[rows] = cifar_batch.read(path, batch)
        except ValueError as error:
            raise ConfigError(f"task = {FILES.task!r} cannot read its data: {error}") from None
    return pixels, labels
