"""Fashion-MNIST: 28x28 images of clothes, 10 labels.

60,000 train and 10,000 test images are pooled, in this order. The files are looked for in
``data_dir/FashionMNIST/raw`` (torchvision's layout; ``data_dir`` is ``data`` unless given), then where Debian's
package puts them, and are else downloaded into the first.
"""

from pathlib import Path

from fedappeal.tasks.datasets.idx_task import IdxTask
from fedappeal.tasks.files.data_files import DataFiles, by_torchvision
from fedappeal.tasks.files.idx_images import Part, names

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")

_PARTS = (Part("train", 60_000), Part("t10k", 10_000))


class FashionMNIST(IdxTask):
    """Pieces of clothing: 70,000 grey images of 28x28."""

    name = "fmnist"
    files = DataFiles(
        task="fmnist",
        layout=Path("FashionMNIST", "raw"),
        names=names(_PARTS),
        remedy="put torchvision's FashionMNIST/raw folder into {data_dir}, or apt-get install dataset-fashion-mnist",
        fetch=by_torchvision("FashionMNIST"),
        elsewhere=lambda: (DEBIAN_DIR,),
    )
    parts = _PARTS
    num_examples = 70_000
    num_classes = 10
    mean = 0.2860
    std = 0.3530
    class_names = (
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle-boot"),
    )
