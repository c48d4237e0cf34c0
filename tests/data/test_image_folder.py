"""A volunteer's own folder of images: labels by the folders' names, channels, size, and what cannot be read."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from client.data.own_data import load_own_data
from client.data.refused import OwnDataError
from client.data.to_predict import examples_of
from fedappeal.data.image_folder import EXTENSIONS, labels_of, read_images
from fedappeal.settings.config import RunConfig, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.trained.card import ModelCard

GREY, RGB = (1, 8, 8), (3, 6, 4)
RNG = np.random.default_rng(1)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., np.ndarray]:
    """Save random pixels (or those given) as an image; return them."""

    def write(name: str, shape: tuple[int, ...] = (8, 8), pixels: np.ndarray | None = None) -> np.ndarray:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        made = RNG.integers(0, 256, shape).astype(np.uint8) if pixels is None else pixels
        Image.fromarray(made).save(path)
        return made

    return write


def read(folder: Path, shape: tuple[int, ...] = GREY, names: tuple[str, ...] = (), classes: int = 10) -> tuple:
    return read_images(folder, shape, names, classes)


def test_images_of_the_tasks_size_are_read_as_they_are(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    later, first, second = save("7/a.png"), save("0/x.png"), save("0/deeper/a.bmp")
    x, y = read(tmp_path)
    assert (x.dtype, y.dtype, x.shape) == (np.float32, np.int64, (3, 1, 8, 8))
    assert y.tolist() == [0, 0, 7]
    # Paths in order: 0/deeper/a.bmp, 0/x.png, 7/a.png.
    np.testing.assert_allclose(x[:, 0] * 255, np.stack([second, first, later]), atol=1e-4)


def test_with_all_classes_in_folders_it_is_what_torchvision_reads(
    save: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import IMG_EXTENSIONS
    from torchvision.transforms.functional import to_tensor

    assert set(EXTENSIONS) == set(IMG_EXTENSIONS)
    for number in range(12):
        save(f"{number % 4}/{number}.png", (6, 4, 3))
    x, y = read(tmp_path, RGB, classes=4)
    theirs = ImageFolder(str(tmp_path))
    assert y.tolist() == theirs.targets
    np.testing.assert_allclose(x, np.stack([to_tensor(image).numpy() for image, _ in theirs]), atol=1e-6)


def test_channels_are_converted_by_the_luma_weights(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    pixels = np.broadcast_to(np.array([200, 100, 50], dtype=np.uint8), (8, 8, 3))
    save("0/colour.png", pixels=np.ascontiguousarray(pixels))
    x, _ = read(tmp_path)
    luma = 0.299 * 200 + 0.587 * 100 + 0.114 * 50  # ITU-R 601-2
    np.testing.assert_allclose(x * 255, np.full((1, 1, 8, 8), luma), atol=1)
    grey = save("0/grey.png", (6, 4))
    x, _ = read(tmp_path, RGB)
    np.testing.assert_allclose(x[1] * 255, np.stack([grey] * 3), atol=1e-4)


def test_a_larger_image_is_averaged_down_and_said_once(
    save: Callable[..., np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    halves = np.zeros((80, 40), dtype=np.uint8)
    halves[:, 20:] = 240
    save("3/large.png", pixels=halves)
    save("3/large2.png", pixels=halves)
    save("3/right.png")
    with caplog.at_level(logging.INFO, "fedappeal.client"):
        x, _ = read(tmp_path)
    expected = np.repeat([[0, 0, 0, 0, 240, 240, 240, 240]], 8, axis=0) / 255
    np.testing.assert_allclose(x[0, 0][:, [0, 1, 2, 5, 6, 7]], expected[:, [0, 1, 2, 5, 6, 7]], atol=1e-6)
    assert x[0].mean() == pytest.approx(120 / 255, abs=0.01)
    assert [r.getMessage() for r in caplog.records] == [f"data {tmp_path}: 2 of 3 images are resized to 8x8"]


def test_an_image_is_turned_as_the_camera_was_held(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (8, 8)).astype(np.uint8)
    (tmp_path / "0").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 3  # held upside down
    Image.fromarray(pixels).save(tmp_path / "0" / "photo.png", exif=exif)
    x, _ = read(tmp_path)
    np.testing.assert_allclose(x[0, 0] * 255, pixels[::-1, ::-1], atol=1e-4)


@pytest.mark.parametrize(
    ("folders", "names", "expected"),
    [
        (["0", "1", "2"], (), {"0": 0, "1": 1, "2": 2}),
        (["10", "2"], (), {"10": 10, "2": 2}),  # by number, where ImageFolder would make them 0 and 1
        (["007", "03"], (), {"007": 7, "03": 3}),
        (["Coat", "Bag"], ("Bag", "Shirt", "Coat"), {"Coat": 2, "Bag": 0}),
        (["Coat", "1"], ("Bag", "Shirt", "Coat"), {"Coat": 2, "1": 1}),
    ],
)
def test_folders_are_called_by_their_label(
    folders: list[str], names: tuple[str, ...], expected: dict[str, int]
) -> None:
    assert labels_of(folders, names, len(names) or 11) == expected


@pytest.mark.parametrize(
    ("folders", "names", "expected"),
    [
        (["0", "cat"], (), "class folder 'cat' is no label of the task: 0 to 2 are"),
        (["3"], (), "class folder '3' is no label of the task: 0 to 2 are"),
        (["-1"], (), "class folder '-1' is no label"),
        (["²"], (), "class folder '²' is no label"),
        (
            ["coat"],
            ("Bag", "Shirt", "Coat"),
            "'coat' is no label of the task: 0 to 2, or Bag, Shirt, Coat are",
        ),
        (["1", "01"], (), "class folders '1' and '01' are both label 1: one is needed"),
        (["0", "Bag"], ("Bag", "Shirt", "Coat"), "class folders '0' and 'Bag' are both label 0"),
    ],
)
def test_a_folder_that_is_no_label_is_one_line(folders: list[str], names: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        labels_of(folders, names, 3)
    assert expected in str(caught.value)


def test_the_names_of_fashion_mnist_are_torchvisions() -> None:
    from torchvision.datasets import FashionMNIST

    ours = load_task(TaskSettings(task="fmnist")).class_names
    assert list(ours) == [name.lower().removesuffix("/top").replace(" ", "-") for name in FashionMNIST.classes]


def test_other_files_are_left_out_and_counted(
    save: Callable[..., np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save("1/a.PNG")
    (tmp_path / "1" / "notes.txt").write_text("mine")
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / "README").write_text("beside the folders")
    (tmp_path / "5").mkdir()
    _, y = read(tmp_path)
    assert y.tolist() == [1]
    assert [r.getMessage() for r in caplog.records] == [
        f"data {tmp_path}: 1 hidden file(s) or folder(s) are skipped",
        f"data {tmp_path}: 1 file(s) that are no images are left out",
    ]


def failing(folder: Path, expected: str, problem: str = "") -> str:
    with pytest.raises(OwnDataError) as caught:
        load_own_data(load_task(TaskSettings()), str(folder), "anna")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert problem in ("", caught.value.problem.value)
    return str(caught.value)


def test_an_image_that_cannot_be_read_is_named(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    folder = tmp_path / "0"
    for number in range(12):
        save(f"0/{number}.png", (64, 64))
    for name, content in (
        ("broken.png", (folder / "1.png").read_bytes()[:300]),
        ("empty.jpg", b""),
        ("text.png", b"not an image"),
    ):
        (folder / name).write_bytes(content)
        assert failing(tmp_path, f"image {folder / name} cannot be read (").startswith(f"data = '{tmp_path}'")
        (folder / name).unlink()
    Image.new("LAB", (8, 8)).save(folder / "odd.tif")
    told = f"image {folder / 'odd.tif'} cannot be read (its pixels are of mode LAB: 8 bits a channel, or grey of 16,"
    failing(tmp_path, told, "unreadable")
    (tmp_path / "77").mkdir()
    failing(tmp_path, "class folder '77' is no label of the task", "labels")


def test_a_pipe_is_not_waited_for(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    save("0/a.png")
    os.mkfifo(tmp_path / "0" / "b.png")
    with pytest.raises(ValueError, match=r"image .*b\.png cannot be read \(it is no file\)"):
        read_images(tmp_path, (1, 8, 8), (), 10)


def test_folders_that_hold_no_images_or_too_few(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "4").mkdir()
    failing(tmp_path, "it holds no images: files that end in .jpg, .jpeg, .png", "too-few")
    save("4/one.png")
    failing(tmp_path, "1 examples are fewer than min-examples = 10")
    for number in range(10):
        save(f"4/{number}.png")
    data = load_own_data(load_task(TaskSettings()), str(tmp_path), "anna")
    assert set(data.train.y.tolist() + data.test.y.tolist()) == {4}
    assert data.train.x.min() >= (0 - 0.3053) / 0.3760 - 1e-6
    assert data.train.x.max() <= (1 - 0.3053) / 0.3760 + 1e-6


def test_links_that_lead_round_in_a_circle_are_refused(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    save("0/a.png")
    (tmp_path / "0" / "again").symlink_to(tmp_path / "0")
    with pytest.raises(ValueError, match=r"0/again is a link to one that is read already: .*/0$"):
        read(tmp_path)


HIDDEN = [
    *("1/.ipynb_checkpoints/a.png", ".Trash/b.png", "1/@eaDir/a.png", "__MACOSX/1/a.png", "1/deeper/._a.png"),
    *("1/._a.png", "1/Thumbs.db", "1/desktop.ini", ".DS_Store", "1/.DS_Store"),
]


def test_what_the_owner_does_not_see_is_skipped_and_counted(
    save: Callable[..., np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No image is trained on twice, and a Mac's ``._a.png``, which is none, refuses no folder."""
    shown = save("1/a.png"), save("1/deeper/b.png")
    for name in HIDDEN:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"Mac OS X" if "._" in name else (tmp_path / "1" / "a.png").read_bytes())
    said = [f"data {tmp_path}: {len(HIDDEN)} hidden file(s) or folder(s) are skipped"]
    x, _y = read(tmp_path)
    np.testing.assert_allclose(x[:, 0] * 255, np.stack(shown), atol=1e-4)
    assert [record.getMessage() for record in caplog.records] == said
    caplog.clear()
    task = load_task(TaskSettings())
    card = ModelCard.of(task, RunConfig(), round=1, run_key="k", figures={}, measured_on="")
    examples = examples_of(tmp_path, card, task)
    batches = list(examples.batches)
    assert [batch.names for batch in batches] == [["1/a.png", "1/deeper/b.png"]]
    assert not examples.unlabelled
    assert [record.getMessage() for record in caplog.records] == said


def test_transparency_is_laid_over_white_and_frames_after_the_first_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0").mkdir()
    half = np.zeros((8, 8, 4), np.uint8)
    half[..., 0], half[..., 3] = 200, 51  # red 200, a fifth of it: 255 - 0.2 * (255 - 200) and 255 - 0.2 * 255
    Image.fromarray(half).save(tmp_path / "0" / "1-rgba.png")
    Image.fromarray(np.full((8, 8, 2), (0, 51), np.uint8), mode="LA").save(tmp_path / "0" / "2-la.png")
    palette = Image.fromarray(np.zeros((8, 8), np.uint8), mode="P")
    palette.putpalette([0, 0, 0])
    palette.save(tmp_path / "0" / "3-palette.png", transparency=0)
    Image.fromarray(np.full((8, 8, 4), 255, np.uint8)).save(tmp_path / "0" / "4-opaque.png")
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (40, 90)]
    frames[0].save(tmp_path / "0" / "5-frames.tif", save_all=True, append_images=frames[1:])
    x, _ = read(tmp_path, (3, 8, 8))
    expected = [(244, 204, 204), (204, 204, 204), (255, 255, 255), (255, 255, 255), (40, 40, 40)]
    np.testing.assert_allclose(x[:, :, 0, 0] * 255, expected, atol=1)
    assert [record.getMessage() for record in caplog.records] == [
        f"data {tmp_path}: 3 transparent image(s) are laid over white",
        f"data {tmp_path}: of 1 image(s) with several frames the first one is used",
    ]


def test_a_name_is_one_name_in_both_forms_of_its_accents_and_a_number_may_be_a_name() -> None:
    composed, apart = "caf\u00e9", "cafe\u0301"
    assert labels_of([apart], ("tee", composed), 2) == {apart: 1}
    assert labels_of([composed], ("tee", apart), 2) == {composed: 1}
    with pytest.raises(ValueError, match="are both label 1"):
        labels_of([apart, composed], ("tee", composed), 2)
    assert labels_of(["1", "3"], ("1", "2", "3"), 3) == {"1": 0, "3": 2}
    with pytest.raises(ValueError, match=r"^class folder '0' is no label of the task: 1, 2, 3 are$"):
        labels_of(["0"], ("1", "2", "3"), 3)
