"""What Fashion-MNIST and EMNIST share: tasks on 28x28 grey images in idx files.

Every client splits its own data into train and test (MaxFL, appendix D.1), so a data set's own train and test
images are pooled, in the order of its parts.
"""

from functools import cached_property
from pathlib import Path

from fedappeal.tasks.arrays import Labels, Pixels
from fedappeal.tasks.files.data_files import DataFiles
from fedappeal.tasks.files.idx_images import SIDE, Part, pooled
from fedappeal.tasks.partitioned import PartitionedTask


class IdxTask(PartitionedTask):
    """A data set of 28x28 grey images in idx files.

    Attributes:
        files: where its files are.
        parts: what they hold.
    """

    input_shape = (1, SIDE, SIDE)
    scale = 255.0
    default_model = "mlp"
    files: DataFiles
    parts: tuple[Part, ...]

    def check_data(self) -> None:
        """Find the files, or download them."""
        self.files.find_or_download(self.data_dir)

    def read(self) -> tuple[Pixels, Labels]:
        """Return all images and labels; read once a process."""
        return pooled(self.files, self.parts, self.num_classes, self._folder)

    @cached_property
    def _folder(self) -> Path:
        """Where the files are: each client's data are read from there."""
        return self.files.find_or_download(self.data_dir).resolve()
