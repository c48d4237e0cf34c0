"""CIFAR-10: pickled batches in torchvision's layout, on small ones in the same format."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import cifar10
from tests.tasks.image_files import batch_bytes
from tests.tasks.small_data import SmallCIFAR10, write_cifar10


def test_the_batches_are_pooled_in_order_and_as_torchvision_reads_them(tmp_path: Path) -> None:
    written = write_cifar10(tmp_path)
    pixels, labels = SmallCIFAR10(TaskSettings(), tmp_path).read()
    assert labels.tolist() == [*range(10)] * 6
    # A row is the red plane, the green, the blue, each row by row.
    assert np.array_equal(pixels[:, 0, 0, :], written[:, :32])
    assert np.array_equal(pixels[:, 2, 31, :], written[:, -32:])
    from torchvision.datasets import CIFAR10

    class Unchecked(CIFAR10):
        def _check_integrity(self) -> bool:
            return True

        def _load_meta(self) -> None:
            self.classes = []

    theirs = np.concatenate([Unchecked(tmp_path, train=True).data, Unchecked(tmp_path, train=False).data])
    assert np.array_equal(pixels.transpose(0, 2, 3, 1), theirs)


def test_clients_get_normalised_images_and_a_cnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_cifar10(tmp_path)
    monkeypatch.setattr(cifar10, "CIFAR10", SmallCIFAR10)
    settings = TaskSettings(task="cifar10", clients=3, partition="iid")
    load_task(settings, tmp_path).check()
    task = load_task(settings, tmp_path)
    x = torch.cat([split.x for k in range(3) for split in (task.load(k).train, task.load(k).test)])
    assert x.shape == (60, 3, 32, 32)
    restored = ((x * 0.2516 + 0.4734) * 255).round().to(torch.uint8).flatten(1).numpy()
    assert {row.tobytes() for row in restored} == {row.tobytes() for row in written}
    model = task.initial_model(0)
    assert any(isinstance(layer, torch.nn.Conv2d) for layer in model)  # type: ignore[arg-type]
    assert model(x).shape == (60, 10)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("evil"),)  # type: ignore[return-value]


ZEROS = np.zeros((10, 3072), dtype=np.uint8)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            batch_bytes(ZEROS[:9], range(9)),
            r"holds uint8 of \(9, 3072\) with labels of \(9,\), not uint8 of \(10, 3072\)",
        ),
        (batch_bytes(ZEROS, range(9)), "with labels of"),
        (batch_bytes(ZEROS, range(1, 11)), "labels in .* are not all 0 to 9"),
        (batch_bytes(ZEROS, range(10))[:-100], "is no batch of images"),
        (b"<html>not found</html>", "is no batch of images"),
        (b"", "is no batch of images"),
        (pickle.dumps([1, 2]), "is no batch of images"),
        (pickle.dumps({"data": 1}), "is no batch of images"),
        (pickle.dumps({"data": Evil(), "labels": []}), "has no place in a batch of images"),
    ],
)
def test_a_damaged_batch_is_one_line_and_nothing_of_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(ConfigError, match=f"task = 'cifar10' cannot read its data: .*{expected}") as caught:
        SmallCIFAR10(TaskSettings(), tmp_path).read()
    assert "data_batch_3" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "evil").exists()


def test_no_data_and_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.CIFAR10.url", "http://127.0.0.1:9/cifar.tar.gz")
    with pytest.raises(
        ConfigError, match=r"task = 'cifar10' finds no data: put .*cifar-10-batches-py.*download"
    ) as caught:
        load_task(TaskSettings(task="cifar10"), tmp_path / "new").check()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_published_size() -> None:
    assert cifar10.CIFAR10.num_examples == 60_000
