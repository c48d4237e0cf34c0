"""EMNIST: two splits in torchvision's layout, on small files in the same format."""

from pathlib import Path

import pytest
import torch

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import idx_images
from tests.tasks.small_data import SmallEMNIST, write_emnist


def test_train_and_test_images_are_pooled_in_this_order(tmp_path: Path) -> None:
    write_emnist(tmp_path)
    pixels, labels = SmallEMNIST(TaskSettings(), tmp_path).read()
    assert pixels.shape == (186, 1, 28, 28)
    assert pixels[:, 0, 5, 7].tolist() == list(range(186))
    assert labels.tolist() == [*range(62)] * 3


def test_clients_get_normalised_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_emnist(tmp_path)
    monkeypatch.setattr(idx_images, "EMNIST", SmallEMNIST)
    settings = TaskSettings(task="emnist", clients=4, partition="iid")
    load_task(settings, tmp_path).check()
    task = load_task(settings, tmp_path)
    everyone = [split for k in range(4) for split in (task.load(k).train, task.load(k).test)]
    y = torch.cat([split.y for split in everyone])
    assert sorted(y.tolist()) == sorted([*range(62)] * 3)
    x = torch.cat([split.x for split in everyone])[:, 0, 3, 3]
    numbers = ((x * 0.3317 + 0.1736) * 255).round().int()
    assert sorted(numbers.tolist()) == list(range(186))
    assert torch.equal(numbers % 62, y.int())
    assert task.initial_model(0)(everyone[0].x).shape == (len(everyone[0]), 62)


def test_the_published_sizes() -> None:
    assert (idx_images.EMNIST.num_examples, idx_images.EMNIST.num_classes) == (814_255, 62)
    assert (idx_images.EMNISTBalanced.num_examples, idx_images.EMNISTBalanced.num_classes) == (131_600, 47)
    for task in (idx_images.EMNIST, idx_images.EMNISTBalanced):
        assert sum(part.count for part in task.parts) == task.num_examples
    assert 131_600 == 47 * 2_800


def test_files_of_another_length_or_split_are_refused(tmp_path: Path) -> None:
    write_emnist(tmp_path)
    with pytest.raises(
        ConfigError, match=r"'emnist' cannot read .*train-images.* holds \(124, 28, 28\), not \(697932,"
    ):
        idx_images.EMNIST(TaskSettings(), tmp_path).read()

    class FewLabels(SmallEMNIST):
        num_classes = 47

    with pytest.raises(ConfigError, match="holds label 61, but its labels are 0 to 46"):
        FewLabels(TaskSettings(), tmp_path).read()


@pytest.mark.parametrize(("task", "split"), [("emnist", "byclass"), ("emnist-balanced", "balanced")])
def test_no_data_and_no_network_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, split: str
) -> None:
    monkeypatch.setattr("torchvision.datasets.EMNIST.url", "http://127.0.0.1:9/gzip.zip")
    with pytest.raises(ConfigError) as caught:
        load_task(TaskSettings(task=task), tmp_path / "new").check()
    for part in (
        f"task = '{task}' finds no data",
        "EMNIST/raw",
        f"emnist-{split}-*",
        str(tmp_path / "new"),
        "download",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_download_moves_all_splits_and_leaves_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(root: str, split: str, download: bool) -> None:
        asked.append((split, download))
        write_emnist(Path(root))
        write_emnist(Path(root), "balanced", 47)
        (Path(root) / "EMNIST" / "raw" / "gzip.zip").write_bytes(b"large")

    monkeypatch.setattr("torchvision.datasets.EMNIST", fetch)
    SmallEMNIST(TaskSettings(), tmp_path).check_data()
    SmallEMNIST(TaskSettings(), tmp_path).check_data()
    assert asked == [("byclass", True)]
    names = {path.name for path in (tmp_path / "EMNIST" / "raw").iterdir()}
    assert len(names) == 8
    assert "gzip.zip" not in names
    assert [path.name for path in tmp_path.iterdir()] == ["EMNIST"]


def test_a_download_that_lacks_a_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torchvision.datasets.EMNIST", lambda root, split, download: write_emnist(Path(root), "letters")
    )
    with pytest.raises(ConfigError, match="what was downloaded lacks some of emnist-byclass-train-images"):
        SmallEMNIST(TaskSettings(), tmp_path).check_data()
