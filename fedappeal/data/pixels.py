"""One decoded image as every reader takes it: upright, over white, in [0, 1]."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
_WHITE = {"I": 65_535, "F": 1}
"""Of modes whose values may be larger: a grey image of 16 bits opens as ``I`` too."""


@dataclass
class Noticed:
    """The oddities of images, each said once.

    Attributes:
        transparent: images that were laid over white.
        frames: images with several frames, of which the first one counts.
    """

    transparent: int = 0
    frames: int = 0


def opaque(image: Any, noticed: Noticed, mode_of_8_bits: str = "") -> Any:
    """Return a Pillow image upright over white; mode ``F`` beyond 8 bits.

    Those are floats in [0, 1].

    Args:
        image: the image.
        noticed: counts what is to be said of it.
        mode_of_8_bits: ``L`` or ``RGB``, to which an image of 8 bits is converted; empty: grey stays grey.

    Raises:
        ValueError: a mode whose white is not known, or values above it.
    """
    from PIL import Image, ImageOps

    noticed.frames += bool(getattr(image, "is_animated", False))
    mode = "I" if image.mode.startswith("I;16") else image.mode
    transparent = image.has_transparency_data
    image = ImageOps.exif_transpose(image)  # cameras write how they were held beside the pixels
    if (white := _WHITE.get(mode)) is not None:
        values = np.asarray(image).astype(np.float32)
        if not 0 <= float(values.min()) <= float(values.max()) <= white:
            text = f"values from {values.min():g} to {values.max():g}: 0 to {white} are allowed"
            raise ValueError(f"an image of mode {image.mode} has {text}")
        values /= np.float32(white)
        return Image.fromarray(values)
    if mode not in _EIGHT_BITS:
        raise ValueError(f"its pixels are of mode {mode}: 8 bits a channel, or grey of 16, are needed")
    if transparent:
        image = image.convert("RGBA")
        noticed.transparent += int(np.asarray(image.getchannel("A")).min() < 255)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode_of_8_bits or ("L" if mode in ("1", "L", "LA") else "RGB"))


def pixels_of(image: Any) -> NDArray[np.float32]:
    """Return an `opaque` image's pixels in [0, 1], shape ``(channels, height, width)``.

    From black to white.
    """
    pixels = np.asarray(image).astype(np.float32)
    if image.mode != "F":
        pixels /= np.float32(255)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
