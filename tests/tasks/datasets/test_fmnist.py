"""Fashion-MNIST: where it is looked for, and a download that fails."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import idx_images
from fedappeal.tasks.datasets.idx_images import FashionMNIST
from fedappeal.tasks.labelled import PartitionedTask
from tests.tasks.image_files import idx_bytes, write_idx

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def write_layout(root: Path, suffix: str = "") -> Path:
    """Write the four files, tiny, in torchvision's layout."""
    raw = root / "FashionMNIST" / "raw"
    for part in ("train", "t10k"):
        write_idx(raw, part, np.zeros((3, 28, 28)), [0] * 3, suffix)
    return raw


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import FashionMNIST

    monkeypatch.setattr(FashionMNIST, "mirrors", ["http://127.0.0.1:9/"])


@pytest.fixture
def debian() -> None:
    if FashionMNIST.files.find(Path("/nonexistent")) is None:
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")


@pytest.fixture
def no_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx_images, "DEBIAN_DIR", tmp_path / "no-such-folder")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_data_dir_comes_before_debians_package(tmp_path: Path, suffix: str) -> None:
    raw = write_layout(tmp_path, suffix)
    assert FashionMNIST.files.find(tmp_path) == raw


def test_the_default_folder_is_searched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_debian: None) -> None:
    monkeypatch.chdir(tmp_path)
    assert FashionMNIST.files.find(None) is None
    write_layout(tmp_path / "data")
    assert FashionMNIST.files.find(None) == Path("data/FashionMNIST/raw")


def test_an_incomplete_folder_is_passed_over(tmp_path: Path, no_debian: None) -> None:
    raw = write_layout(tmp_path)
    (raw / NAMES[2]).unlink()
    assert FashionMNIST.files.find(tmp_path) is None


@pytest.mark.parametrize("content", [idx_bytes(np.zeros((3, 28, 28))), b"cut off"])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    raw = write_layout(tmp_path)
    (raw / NAMES[0]).write_bytes(content)
    with pytest.raises(ConfigError, match=f"task = 'fmnist' cannot read its data: .*{NAMES[0]}") as caught:
        idx_images.FashionMNIST(TaskSettings(), tmp_path).read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_download_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_debian: None,
    capfd: pytest.CaptureFixture[str],
    existing: bool,
) -> None:
    unreachable(monkeypatch)
    root = tmp_path / "deep" / "folder"
    if existing:
        root.mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        load_task(TaskSettings(task="fmnist"), root).check()
    message = str(caught.value)
    assert "\n" not in message
    for remedy in ("FashionMNIST/raw", "apt-get install dataset-fashion-mnist", "download", str(root)):
        assert remedy in message
    assert sorted(tmp_path.rglob("*")) == ([tmp_path / "deep", root] if existing else [])
    assert capfd.readouterr() == ("", "")


def test_a_download_ends_up_whole_in_data_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_debian: None
) -> None:
    monkeypatch.setattr("torchvision.datasets.FashionMNIST", lambda root, download: write_layout(Path(root)))
    assert FashionMNIST.files.find_or_download(tmp_path / "new") == tmp_path / "new" / "FashionMNIST" / "raw"
    assert FashionMNIST.files.find(tmp_path / "new") is not None
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["FashionMNIST"]


def test_fashion_mnist_in_maxfls_clusters(debian: None) -> None:
    chosen = TaskSettings(task="fmnist", clients=100, partition="clusters", clusters=5, flip_share=0.3)
    task = load_task(chosen, Path("/nonexistent"))
    assert isinstance(task, PartitionedTask)
    assert (task.input_shape, task.num_classes) == ((1, 28, 28), 10)
    # 70,000 pooled images, 7,000 a label: 14,000 a cluster over 20 clients, 60 % of 700 for training.
    everyone = [task.load(k) for k in range(100)]
    assert {(len(d.train), len(d.test)) for d in everyone} == {(420, 280)}
    assert len(task.flipped) == 30
    assert {frozenset(torch.cat([d.train.y, d.test.y]).tolist()) for d in everyone} == {
        frozenset({2 * c, 2 * c + 1}) for c in range(5)
    }
    x = torch.cat([split.x for d in everyone for split in (d.train, d.test)])
    assert x.mean().item() == pytest.approx(0, abs=0.01)
    assert x.std().item() == pytest.approx(1, abs=0.01)


def test_the_first_rows_are_the_train_images(debian: None) -> None:
    pixels, labels = idx_images.FashionMNIST(TaskSettings(), Path("/nonexistent")).read()
    assert pixels.shape == (70_000, 1, 28, 28)
    assert labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]  # as published: train, then test
    assert labels[60_000:60_005].tolist() == [9, 2, 1, 1, 6]
    assert np.bincount(labels).tolist() == [7000] * 10
