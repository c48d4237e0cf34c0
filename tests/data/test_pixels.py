"""Images of every mode: the same numbers from a folder as from a column of a `datasets.Dataset`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedappeal.api.silence import Notice
from fedappeal.api.tables import TableColumns, rows_of_dataset
from fedappeal.data.image_folder import read_images
from fedappeal.data.pixels import Noticed, opaque, pixels_of
from fedappeal.settings.config import ConfigError
from tests.later import Later

datasets = Later("datasets")
DEEP = 23_800 / 65_535
HALF_RED = [(255 - 0.2 * (255 - c)) / 255 for c in (200, 0, 0)]  # a fifth of (200, 0, 0) over white


def image_of(mode: str, value: Any) -> Image.Image:
    if mode == "I;16B":
        return Image.frombytes(mode, (6, 4), int(value).to_bytes(2, "big") * 24)
    return Image.new(mode, (6, 4), value)


MODES = [
    ("I;16", 23_800, [DEEP]),
    ("I;16B", 23_800, [DEEP]),
    ("I", 23_800, [DEEP]),
    ("F", 0.5, [0.5]),
    ("1", 1, [1.0]),
    ("L", 51, [0.2]),
    ("LA", (51, 255), [0.2]),
    ("LA", (0, 51), [0.8]),
    ("RGBA", (200, 0, 0, 51), HALF_RED),
    ("RGB", (255, 51, 0), [1.0, 0.2, 0.0]),
    ("CMYK", (0, 255, 255, 0), [1.0, 0.0, 0.0]),
]


@pytest.mark.parametrize(("mode", "value", "expected"), MODES)
def test_an_image_of_any_mode_is_opaque_and_between_0_and_1(mode: str, value: Any, expected: list[float]) -> None:
    noticed = Noticed()
    pixels = pixels_of(opaque(image_of(mode, value), noticed))
    assert (pixels.shape, pixels.dtype) == ((len(expected), 4, 6), np.float32)
    np.testing.assert_allclose(pixels[:, 0, 0], expected, atol=1 / 255 / 2)
    assert noticed.transparent == (mode in ("LA", "RGBA") and value[-1] < 255)


def test_a_folder_and_a_column_of_images_say_the_same(tmp_path: Path) -> None:
    chosen = [(mode, value) for mode, value, expected in MODES if len(expected) == 3 and mode != "CMYK"] * 2
    images = [image_of(mode, value) for mode, value in chosen]
    turned = Image.Exif()
    turned[0x0112] = 3  # held upside down
    (tmp_path / "0").mkdir()
    for number, image in enumerate(images):
        image.putpixel((0, 0), 0)
        image.save(tmp_path / "0" / f"{number}.png", exif=turned)
    rows = {"x": [str(file) for file in sorted((tmp_path / "0").iterdir())], "y": [0, 1] * 2, "user": list("aabb")}
    column = datasets.Dataset.from_dict(rows).cast_column("x", datasets.Image())
    with pytest.warns(Notice, match="column 'x': transparent images are laid over white"):
        clients = rows_of_dataset(column, TableColumns("user", "y")).clients
    x, _ = read_images(tmp_path, (3, 4, 6), (), 2)
    np.testing.assert_array_equal(np.concatenate([np.asarray(client.x) for client in clients]), x)
    assert x[0, 0, -1, -1] != x[0, 0, 0, 0]


def test_deep_grey_images_keep_their_depth_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    values = np.arange(24, dtype=np.uint16).reshape(4, 6) * 2_000
    Image.fromarray(values).save(tmp_path / "0" / "a.png")
    for channels in (1, 3):
        x, _ = read_images(tmp_path, (channels, 4, 6), (), 2)
        np.testing.assert_allclose(x[0], np.stack([values / 65_535] * channels), rtol=1e-6)
    Image.fromarray(np.full((8, 12), 30_000, np.uint16)).save(tmp_path / "0" / "a.png")
    x, _ = read_images(tmp_path, (1, 4, 6), (), 2)
    np.testing.assert_allclose(x, np.full((1, 1, 4, 6), 30_000 / 65_535), rtol=1e-6)


def test_values_above_white_are_refused_by_both(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    image = Image.new("I", (4, 5), 70_000)
    image.save(tmp_path / "0" / "a.tif")
    line = "an image of mode I has values from 70000 to 70000: 0 to 65535 are allowed"
    with pytest.raises(ValueError, match=line):
        read_images(tmp_path, (1, 8, 8), (), 2)
    rows = datasets.Dataset.from_dict({"x": [image] * 4, "y": [0, 1] * 2, "user": list("aabb")})
    with pytest.raises(ConfigError, match=f"column 'x' is not allowed: {line}"):
        rows_of_dataset(rows, TableColumns("user", "y"))
